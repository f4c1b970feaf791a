package registry

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

func TestParseWorkerFlag(t *testing.T) {
	got, err := ParseWorkerFlag("https://Engine:8000/base/,role=prefill,model=b+a,model=a,zone=eu,dialect=push," +
		"peers=10.0.0.0/8+::ffff:1.2.3.4,label.team=x,draining=true,token_file=/t,ca_file=/c,interval=500ms,max_running=256,reporter_port=65535,id=w1")
	if err != nil {
		t.Fatal(err)
	}
	want := WorkerSpec{
		ID: "w1", URL: "https://Engine:8000/base", Origin: "engine:8000", Role: store.RolePrefill,
		Models: []string{"a", "b"}, Zone: "eu", Labels: map[string]string{"team": "x"}, Dialect: store.DialectPush,
		Peers:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("1.2.3.4/32")},
		Draining: true, TokenFile: "/t", CAFile: "/c", Interval: 500 * time.Millisecond, MaxRunning: 256, ReporterPort: 65535,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseWorkerFlagDefaults(t *testing.T) {
	got, err := ParseWorkerFlag("http://[::1]/")
	want := WorkerSpec{ID: "http://[::1]:80", URL: "http://[::1]", Origin: "[::1]:80"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestParseWorkerFlagRefuses(t *testing.T) {
	long := strings.Repeat("x", 257)
	for value, mention := range map[string]string{
		"":                                  "url",
		"ftp://a:1":                         "scheme",
		"http://u:p@a:1":                    "user",
		"http://a:1?q":                      "query",
		"http://a:1?":                       "query",
		"http://a:1#f":                      "fragment",
		"http://a:1#":                       "fragment",
		"http://a:1/\u202e":                 "printable",
		"http://a:1/\xff":                   "printable",
		"http://" + long:                    "longer",
		"http://a:1,":                       "key=value",
		"http://a:1,role":                   "key=value",
		"http://a:1,role=both":              "plain, prefill, decode",
		"http://a:1,color=red":              "unknown key",
		"http://a:1,dialect=nosuch":         `"nosuch" is not supported`,
		"http://a:1,model=a++b":             "empty",
		"http://a:1,model=" + long:          "longer",
		"http://a:1,zone=" + long[:65]:      "longer",
		"http://a:1,peers=10.0.0.0/33":      "CIDR",
		"http://a:1,peers=fe80::1%eth0":     "CIDR",
		"http://a:1,peers=::ffff:1.2.3.0/8": "CIDR",
		"http://a:1,draining=yes":           "true or false",
		"http://a:1,interval=1ns":           "below",
		"http://a:1,interval=x":             "duration",
		"http://a:1,max_running=0":          "from 1 to 2147483648",
		"http://a:1,max_running=2147483649": "from 1 to 2147483648",
		"http://a:1,max_running=1.5":        "whole number",
		"http://a:1,reporter_port=0":        "from 1 to 65535",
		"http://a:1,reporter_port=65536":    "from 1 to 65535",
		"http://a:1,reporter_port=grpc":     "from 1 to 65535",
		"http://a:1,label.reporter_port=0":  "from 1 to 65535",
		"http://a:1,label.=x":               "label name",
		"http://a:1,id=" + long:             "longer",
		"http://a:1,token_file=":            "empty",
	} {
		if _, err := ParseWorkerFlag(value); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%.60q: got %v, want an error that mentions %q", value, err, mention)
		}
	}
}

func TestParseWorkerFlagDialects(t *testing.T) {
	for d := store.DialectUnspecified; d <= store.DialectNone; d++ {
		if s, err := ParseWorkerFlag("http://a:1,dialect=" + d.String()); err != nil || s.Dialect != d {
			t.Errorf("%s: got %s, %v", d, s.Dialect, err)
		}
	}
}

func TestParseWorkerFlagBoundsLists(t *testing.T) {
	var models, peers, labels strings.Builder
	for i := range maxListed + 1 {
		n := string(rune('0'+i/10)) + string(rune('0'+i%10))
		models.WriteString(",model=m" + n)
		peers.WriteString(",peers=10.0.0." + strings.TrimPrefix(n, "0"))
		labels.WriteString(",label.l" + n + "=x")
	}
	for _, list := range []string{models.String(), peers.String(), labels.String()} {
		if _, err := ParseWorkerFlag("http://a:1" + list); err == nil || !strings.Contains(err.Error(), "more than 64") {
			t.Errorf("%.20s...: got %v", list, err)
		}
	}
}

func FuzzParseWorkerFlag(f *testing.F) {
	f.Add("http://a:1,role=decode,model=a+b,peers=::1,label.x=y,interval=1s,draining=false")
	f.Fuzz(func(t *testing.T, value string) {
		s, err := ParseWorkerFlag(value)
		if err != nil {
			return
		}
		if origin, err := NormalizeOrigin(s.URL); err != nil || origin != s.Origin {
			t.Fatalf("%q: URL %q has origin %q, %v, not %q", value, s.URL, origin, err, s.Origin)
		}
		if s.ID == "" || len(s.ID) > maxAddrBytes || len(s.Models) > maxListed {
			t.Fatalf("%q gave %+v", value, s)
		}
	})
}
