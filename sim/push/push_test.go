package push

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestOriginOfTheRequest(t *testing.T) {
	tests := map[string]string{
		"engine:30000":  "http://engine:30000",
		"Engine":        "http://engine:80",
		"10.0.0.1":      "http://10.0.0.1:80",
		"[::1]:30000":   "http://[::1]:30000",
		"[FE80::1]":     "http://[fe80::1]:80",
		"engine.ns:443": "http://engine.ns:443",
	}
	for host, want := range tests {
		r := httptest.NewRequest(http.MethodPost, Path, nil)
		r.Host = host
		r.Header.Set("X-Forwarded-Host", "elsewhere:1")
		r.Header.Set("X-Forwarded-Proto", "https")
		if got := origin(r); got != want {
			t.Errorf("Host %q gives %q, want %q", host, got, want)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "https://engine/", nil)
	if got := origin(r); got != "https://engine:443" {
		t.Errorf("a TLS request gives %q", got)
	}
}

func FuzzParseRegistration(f *testing.F) {
	f.Add([]byte(`{"ip":"127.0.0.1","port":7401,"report_interval_ms":1000,"lease_ttl_ms":15000}`))
	f.Add([]byte(`{"ip":"::1","port":1.0}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseRegistration(body)
		if err != nil {
			return
		}
		if !r.target.IP.IsValid() || r.target.Port == 0 || millis(r.intervalMs) <= 0 || millis(r.leaseMs) <= 0 {
			t.Errorf("%q gives %+v", body, r)
		}
	})
}
