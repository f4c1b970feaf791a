package server

import (
	"encoding/json"
	"testing"
)

func TestOpen(t *testing.T) {
	if _, err := Open(Spec{Kind: "other"}); err == nil {
		t.Error("an unknown server was opened")
	}
	for _, kind := range []Kind{Stock, Tuned} {
		p, err := Open(Spec{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		if u := p.Usage(); u.Reports != 0 || u.CPU <= 0 || p.Addresses.Ingest == "" {
			text, _ := json.Marshal(u)
			t.Errorf("%s: %s at %q", kind, text, p.Addresses.Ingest)
		}
		p.Close()
	}
}
