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
