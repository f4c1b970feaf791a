package server

import (
	"encoding/json"
	"testing"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/protobuf/proto"
)

// The plane's decoder is reached, takes a report, and keeps no error for one
// that it cannot read, as it does in the plane.
func TestDecoder(t *testing.T) {
	b, err := proto.Marshal(&pb.LoadReport{SourceInstanceId: "life", Ranks: []*pb.RankLoad{{DpRank: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	d := newDecoder(4)
	for _, bytes := range [][]byte{b, {0xff}, nil} {
		if err := d.DecodeWire(bytes); err != nil {
			t.Errorf("%x: %v", bytes, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = d.DecodeWire(b) }); n > 0 {
		t.Errorf("%v allocations a report of the same source", n)
	}
}

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
