package sample

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// fuzz reads two pages one after the other, and demands valid reports.
func fuzz(f *testing.F, name string) {
	for _, c := range fixtures {
		if c.endpoint == name {
			f.Add([]byte(fixture(f, c.file)), []byte(fixture(f, c.file)), uint8(0))
		}
	}
	for _, c := range refused {
		if c.endpoint == name && len(c.page) < 1000 {
			f.Add([]byte(c.page), []byte(c.page), uint8(2))
		}
	}
	for _, c := range odd {
		if c.endpoint == name {
			f.Add([]byte(c.page), []byte(c.page), uint8(1))
		}
	}
	f.Fuzz(func(t *testing.T, first, second []byte, ranks uint8) {
		s := NewSampler(endpoint(t, name))
		hints := Hints{DPSize: int(ranks), CapacityTokens: 1000, MaxRunning: 10, Models: []string{"m"}}
		for i, page := range [][]byte{first, second, first, second} {
			r, refusal := s.Read(page, store.Instant(i+1).Add(time.Duration(i)*time.Second), hints)
			if refusal == nil {
				mustBeValid(t, r)
			} else if refusal.Reason == "" || refusal.Message == "" {
				t.Fatalf("refusal %+v", refusal)
			}
		}
		Recognize(first)
	})
}

func FuzzReadLoads(f *testing.F)      { fuzz(f, "sglang /v1/loads") }
func FuzzReadGetLoad(f *testing.F)    { fuzz(f, "sglang /get_load") }
func FuzzReadSGLang(f *testing.F)     { fuzz(f, "sglang /metrics") }
func FuzzReadVLLM(f *testing.F)       { fuzz(f, "vllm /metrics") }
func FuzzReadTensorRT(f *testing.F)   { fuzz(f, "tensorrt-llm /prometheus/metrics") }
func FuzzReadIterations(f *testing.F) { fuzz(f, "tensorrt-llm /metrics") }
func FuzzReadTriton(f *testing.F)     { fuzz(f, "triton /metrics") }
func FuzzReadTGI(f *testing.F)        { fuzz(f, "tgi /metrics") }
func FuzzReadLlamaCPP(f *testing.F)   { fuzz(f, "llama.cpp /metrics") }
