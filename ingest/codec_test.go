package ingest

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

type recorder struct{ got []byte }

func (r *recorder) DecodeWire(b []byte) error {
	r.got = bytes.Clone(b)
	return nil
}

func TestCodecHandsOverBytes(t *testing.T) {
	for name, data := range map[string]mem.BufferSlice{
		"none": nil,
		"one":  {mem.SliceBuffer("abc")},
		"many": {mem.SliceBuffer("a"), mem.SliceBuffer(""), mem.SliceBuffer("bc")},
	} {
		var r recorder
		if err := (codec{}).Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		if want := data.Materialize(); !bytes.Equal(r.got, want) {
			t.Errorf("%s: %q, want %q", name, r.got, want)
		}
	}
}

// countingPool counts what was taken and not given back.
type countingPool struct{ out int }

func (p *countingPool) Get(n int) *[]byte {
	p.out++
	b := make([]byte, n)
	return &b
}

func (p *countingPool) Put(*[]byte) { p.out-- }

func TestCodecReleasesBuffers(t *testing.T) {
	var pool countingPool
	data := mem.BufferSlice{mem.NewBuffer(pool.Get(4096), &pool)}
	if err := (codec{}).Unmarshal(data, &recorder{}); err != nil {
		t.Fatal(err)
	}
	data.Free()
	if pool.out != 0 {
		t.Errorf("%d buffers leaked", pool.out)
	}
}

func TestCodecDropsUnknownFields(t *testing.T) {
	b, _ := proto.Marshal(&grpc_health_v1.HealthCheckRequest{Service: "x"})
	b = append(b, 0x78, 0x01) // field 15, varint 1
	var m grpc_health_v1.HealthCheckRequest
	if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &m); err != nil {
		t.Fatal(err)
	}
	if m.Service != "x" || len(m.ProtoReflect().GetUnknown()) != 0 {
		t.Errorf("decoded %v with unknown %x", &m, m.ProtoReflect().GetUnknown())
	}
}

func TestCodecRefusesOthers(t *testing.T) {
	if err := (codec{}).Unmarshal(nil, 1); err == nil {
		t.Error("an int was decoded")
	}
	if _, err := (codec{}).Marshal(1); err == nil {
		t.Error("an int was encoded")
	}
	if b, err := (codec{}).Marshal(&emptypb.Empty{}); err != nil || b.Len() != 0 {
		t.Errorf("Empty is %v, %v", b, err)
	}
}
