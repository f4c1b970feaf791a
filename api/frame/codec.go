package frame

import (
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Codecs returns the options that make a handler send frames, as protobuf and
// as JSON, and keep to its ordinary messages too. A handler sends a *Frame by
// the Send of its stream's connection.
func Codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(protoCodec{}),
		connect.WithCodec(jsonCodec{name: "json"}),
		connect.WithCodec(jsonCodec{name: "json; charset=utf-8"}),
	}
}

// protoCodec writes frames and messages as protobuf. It only ever appends: the
// caller recycles the slice it gets, so shared bytes must not be handed out.
type protoCodec struct{}

func (protoCodec) Name() string { return "proto" }

func (c protoCodec) Marshal(v any) ([]byte, error) { return c.MarshalAppend(nil, v) }

func (protoCodec) MarshalAppend(dst []byte, v any) ([]byte, error) {
	if f, ok := v.(*Frame); ok {
		return f.appendTo(dst)
	}
	m, err := messageOf(v)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, m)
}

func (protoCodec) Unmarshal(b []byte, v any) error {
	m, err := messageOf(v)
	if err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// jsonCodec writes frames and messages as protobuf JSON. Known zeros are
// written; what is unknown is left out.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(v any) ([]byte, error) { return c.MarshalAppend(nil, v) }

func (jsonCodec) MarshalAppend(dst []byte, v any) ([]byte, error) {
	m, err := messageOf(v)
	if err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.MarshalAppend(dst, m)
}

func (jsonCodec) Unmarshal(b []byte, v any) error {
	m, err := messageOf(v)
	if err != nil {
		return err
	}
	// A key that is not known may ask for what would not be done.
	return protojson.Unmarshal(b, m)
}

func messageOf(v any) (proto.Message, error) {
	switch v := v.(type) {
	case *Frame:
		return v.Message()
	case proto.Message:
		return v, nil
	}
	return nil, fmt.Errorf("%T is not a protobuf message", v)
}
