package ingest

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// wireDecoder is a message that decodes itself. DecodeWire must not keep b.
type wireDecoder interface{ DecodeWire(b []byte) error }

// codec hands the bytes to messages that decode themselves; others go through
// protobuf-go, their unknown fields dropped.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("ingest: %T is no protobuf message", v)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	switch m := v.(type) {
	case wireDecoder:
		return m.DecodeWire(buf.ReadOnlyData())
	case proto.Message:
		return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(buf.ReadOnlyData(), m)
	}
	return fmt.Errorf("ingest: %T is no protobuf message", v)
}
