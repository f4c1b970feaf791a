package loadstat

import (
	"testing"

	"github.com/loadplane/loadplane/registry"
)

func TestLocate(t *testing.T) {
	cases := []struct {
		name, url, host, topic string
		// want is where rank 3 is; empty for a foreign host.
		want string
	}{
		{"no host", "http://10.0.0.1:30000", "", "", "10.0.0.1:5603"},
		{"any IPv4", "http://10.0.0.1:30000", "0.0.0.0", "", "10.0.0.1:5603"},
		{"any IPv6", "http://[fd00::1]:30000", "::", "", "[fd00::1]:5603"},
		{"any IPv6 in brackets", "http://10.0.0.1:30000", "[::]", "", "10.0.0.1:5603"},
		{"star", "https://engine.example:443", "*", "", "engine.example:5603"},
		{"its own name", "http://Engine.example", "engine.EXAMPLE", "", "Engine.example:5603"},
		{"its own address", "http://10.0.0.1:30000", "10.0.0.1", "", "10.0.0.1:5603"},
		{"its own address in IPv6", "http://10.0.0.1:30000", "::ffff:10.0.0.1", "", "10.0.0.1:5603"},
		{"loopback by name", "http://localhost:30000", "127.0.0.1", "", "localhost:5603"},
		{"loopback by address", "http://[::1]:30000", "localhost", "", "[::1]:5603"},
		{"a topic", "http://10.0.0.1:30000", "", "gpu-load", "10.0.0.1:5603"},
		{"another address", "http://10.0.0.1:30000", "10.0.0.2", "", ""},
		{"another name", "http://10.0.0.1:30000", "engine.example", "", ""},
		{"loopback elsewhere", "http://10.0.0.1:30000", "127.0.0.1", "", ""},
		{"localhost elsewhere", "http://10.0.0.1:30000", "localhost", "", ""},
		{"an address for a name", "http://engine.example", "10.0.0.1", "", ""},
		{"a whole endpoint", "http://10.0.0.1:30000", "tcp://10.0.0.1", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			target := registry.Target{URL: c.url, Facts: registry.Facts{
				LoadStat: registry.LoadStat{Host: c.host, Port: 5600, Topic: c.topic, Ranks: 4},
			}}
			s, reason, err := locate(&target, 4)
			if c.want == "" {
				if reason != ReasonForeignEndpoint || err == nil {
					t.Errorf("got %+v, %s, %v", s, reason, err)
				}
				return
			}
			topic := c.topic
			if topic == "" {
				topic = "load"
			}
			if err != nil || s.addr(3) != c.want || s.topic != topic || s.ranks != 4 {
				t.Errorf("got %+v, %v, want %s", s, err, c.want)
			}
		})
	}
}

// TestLocateBounds has sockets at the ends of what there is.
func TestLocateBounds(t *testing.T) {
	for _, c := range []struct {
		name        string
		port, ranks int
		want        bool
	}{
		{"first port", 1, 1, true}, {"last port", 65535, 1, true}, {"beyond", 65536, 1, false},
		{"ranks up to the last port", 65532, 4, true}, {"one rank beyond", 65533, 4, false},
		{"negative", -1, 4, false}, {"as many ranks as allowed", 5600, 4, true}, {"a rank more", 5600, 5, false},
		{"no ranks", 5600, 0, false}, {"negative ranks", 5600, -1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := registry.Target{URL: "http://10.0.0.1:30000", Facts: registry.Facts{
				LoadStat: registry.LoadStat{Port: c.port, Ranks: c.ranks},
			}}
			s, reason, err := locate(&target, 4)
			if c.want && (err != nil || reason != "" || s.port != c.port) || !c.want && (err == nil || reason != ReasonBadEndpoint) {
				t.Errorf("got %+v, %q, %v", s, reason, err)
			}
		})
	}
}
