package loadstat

import (
	"encoding/binary"
	"errors"
	"io"
)

// Flags of a ZMTP 3.0 frame; rfc.zeromq.org/spec/23.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// maxFrame bounds what a subscriber may send.
const maxFrame = 4 << 10

var errTooLong = errors.New("frame is too long")

// appendFrame appends a frame; flags may have flagMore and flagCommand.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// readFrame reads one frame and allocates maxFrame at most.
func readFrame(r io.Reader) (flags byte, body []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if head[0]&flagLong != 0 {
		if _, err := io.ReadFull(r, head[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > maxFrame {
		return 0, nil, errTooLong
	}
	body = make([]byte, size)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}
