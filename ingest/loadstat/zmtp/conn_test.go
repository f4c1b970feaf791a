package zmtp

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// ready is a command that ends the handshake.
func ready(kind string) []byte {
	body := slices.Concat([]byte("\x05READY\x0bSocket-Type\x00\x00\x00"), []byte{byte(len(kind))}, []byte(kind))
	return append([]byte{4, byte(len(body))}, body...)
}

func TestConn(t *testing.T) {
	const pub = "PUB"
	ping := append([]byte{4, 7, 4}, "PING\x00\x09"...)
	load := slices.Concat(append([]byte{flagMore, 4}, "load"...), append([]byte{0, 2}, "ok"...))
	cases := []struct {
		name string
		data []byte
		// messages come before the error.
		messages int
		want     error
	}{
		{"nothing", nil, 0, ErrBroken},
		{"half a greeting", greeting("NULL")[:30], 0, ErrBroken},
		{"another protocol", []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"), 0, ErrProtocol},
		{"another mechanism", greeting("CURVE"), 0, ErrProtocol},
		{"no properties", append(greeting("NULL"), load...), 0, ErrProtocol},
		{"another kind", append(greeting("NULL"), ready("REQ")...), 0, ErrProtocol},
		{"an unknown kind", append(greeting("NULL"), ready("BOGUS")...), 0, ErrProtocol},
		{"properties cut", append(greeting("NULL"), 4, 7, 5, 'R', 'E', 'A', 'D', 'Y', 200), 0, ErrProtocol},
		{"properties too large", append(greeting("NULL"), long(4, 1<<40, 0)...), 0, ErrTooLarge},
		{"a message", slices.Concat(greeting("NULL"), ready(pub), load), 1, ErrBroken},
		{"pings between messages", slices.Concat(greeting("NULL"), ready(pub), ping, load, ping, load), 2, ErrBroken},
		{"a broken command", slices.Concat(greeting("NULL"), ready(pub), load, []byte{4, 2, 200, 1}), 1, ErrProtocol},
		{"a giant frame", slices.Concat(greeting("NULL"), ready(pub), load, long(0, 1<<40, 0)), 1, ErrTooLarge},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conn, err := Subscribe(source{Reader: bytes.NewReader(c.data)}, Options{Topic: "load", MaxBytes: maxBytes, Received: counter()})
			for n := 0; err == nil; n++ {
				var frames [][]byte
				frames, err = conn.Receive()
				switch {
				case err != nil && n != c.messages:
					t.Errorf("%d messages came, want %d", n, c.messages)
				case err == nil && (len(frames) != 2 || string(frames[0]) != "load" || string(frames[1]) != "ok"):
					t.Errorf("got %q", frames)
				}
			}
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
