package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

func TestParseRecord(t *testing.T) {
	cases := []struct{ text, name, id string }{
		{"engines.ml.svc:8000", "engines.ml.svc", "http://10.0.0.1:8000"},
		{"engines.ml.svc.:8000,scheme=https", "engines.ml.svc.", "https://10.0.0.1:8000"},
		{"srv:_http._tcp.engines.ml.svc", "_http._tcp.engines.ml.svc", "http://10.0.0.1:9999"},
		{"engines:8000,role=prefill,model=a+b,zone=z1,dialect=poll,label.team=x,reporter_port=9", "engines", "http://10.0.0.1:8000"},
	}
	for _, c := range cases {
		r, err := ParseRecord(c.text)
		if err != nil || r.Name != c.name || r.SRV() != strings.HasPrefix(c.text, "srv:") {
			t.Fatalf("%s: %+v, %v", c.text, r, err)
		}
		port := r.Port
		if r.SRV() {
			port = 9999
		}
		s, err := r.spec(netip.AddrPortFrom(netip.MustParseAddr("::ffff:10.0.0.1"), port))
		if err != nil || s.ID != c.id || s.URL != c.id || !s.Guarded {
			t.Errorf("%s: %+v, %v", c.text, s, err)
		}
	}
	r, err := ParseRecord(cases[3].text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.spec(netip.MustParseAddrPort("10.0.0.1:8000"))
	if err != nil || s.Role != store.RolePrefill || len(s.Models) != 2 || s.Zone != "z1" ||
		s.Dialect != store.DialectPoll || s.Labels["team"] != "x" || s.ReporterPort != 9 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestParseRecordRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "neither NAME:PORT",
		"engines":                   "neither NAME:PORT",
		"engines:0":                 "not a port",
		"engines:70000":             "not a port",
		"engines:http":              "not a port",
		":8000":                     "not a name",
		"srv:":                      "not a name",
		"srv:.":                     "not a name",
		"10.0.0.1:8000":             "is an address",
		"[::1]:8000":                "is an address",
		"en gines:8000":             "not a name",
		"engines\n:8000":            "not a name",
		"http://engines:8000":       "neither NAME:PORT",
		"a..b:8000":                 "not a name",
		"engines:8000,role":         "not key=value",
		"engines:8000,role=x":       "role: ",
		"engines:8000,id=a":         "id: ",
		"engines:8000,scheme=ftp":   "scheme: ",
		"engines:8000,nothing=1":    "nothing: ",
		"engines:8000,interval=1ns": "interval: ",
	} {
		if r, err := ParseRecord(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", text, r, err, want)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("engines:8000,role=prefill")
	f.Add("srv:_http._tcp.engines,scheme=https,label.a=b")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRecord(text)
		if err != nil {
			return
		}
		specs, err := r.specs([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:1"), netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("10.0.0.2:1")})
		if err != nil || len(specs) != 2 || specs[0].ID >= specs[1].ID {
			t.Fatalf("%q gives %+v, %v", text, specs, err)
		}
		for _, s := range specs {
			if _, err := registry.NewSpec(s.URL); err != nil || !s.Guarded {
				t.Fatalf("%q gives %+v: %v", text, s, err)
			}
		}
	})
}
