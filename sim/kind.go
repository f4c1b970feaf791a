package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/loadplane/loadplane/sim/face"
)

// Kind is the engine that a simulated one behaves as.
type Kind string

// The kinds, in the words of the flag --kinds.
const (
	// KindSGLang has the push load reporter beside its pages.
	KindSGLang Kind = "sglang"
	// KindSGLangPoll is a released SGLang, which has no push load reporter.
	KindSGLangPoll Kind = "sglang-poll"
	// KindSGLangMonitor is an SGLang with the load reporter that routers dial,
	// on a free port which /server_info names.
	KindSGLangMonitor Kind = "sglang-monitor"
	// KindSGLangLoadStat is an SGLang 0.5.19 that publishes its load on a ZMQ
	// socket for each rank, on free ports which /server_info names.
	KindSGLangLoadStat Kind = "sglang-loadstat"
	// KindVLLM is a vLLM 0.26 with an API server for all its ranks.
	KindVLLM Kind = "vllm"
	// KindTGI is a text-generation-inference; it has one rank.
	KindTGI Kind = "tgi"
	// KindLlamaCPP is a llama.cpp server; it has one rank.
	KindLlamaCPP Kind = "llamacpp"
	// KindTRTLLM is a trtllm-serve; it has one rank, as its pages know none.
	KindTRTLLM Kind = "trtllm"
	// KindTriton is a Triton with the TensorRT-LLM backend; it has one rank.
	KindTriton Kind = "triton"
	// KindNative is an engine of no family: it has ranks, no pages of load, and
	// registers itself at a plane. Discovery does not list it.
	KindNative Kind = "native"
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		KindSGLang, KindSGLangMonitor, KindSGLangLoadStat, KindSGLangPoll,
		KindVLLM, KindTGI, KindLlamaCPP, KindTRTLLM, KindTriton, KindNative,
	}
}

// MixedKinds returns the kinds of a mixed fleet, in turn. The first five have a
// dialect each, and the first three are a plain, a prefill and a decode engine.
func MixedKinds() []Kind {
	return []Kind{
		KindSGLang, KindSGLangMonitor, KindSGLangLoadStat, KindVLLM, KindNative,
		KindSGLang, KindSGLangPoll, KindTGI, KindLlamaCPP, KindTRTLLM, KindTriton,
	}
}

// ParseKinds reads kinds, of any number, from words. The error names the word.
func ParseKinds(words []string) ([]Kind, error) {
	var kinds []Kind
	for _, w := range words {
		if !slices.Contains(Kinds(), Kind(w)) {
			return nil, fmt.Errorf("sim: unknown kind %q; known are %s", w, named(Kinds()))
		}
		kinds = append(kinds, Kind(w))
	}
	return kinds, nil
}

// named names things by their words.
func named[T ~string](things []T) string {
	words := make([]string, len(things))
	for i, t := range things {
		words[i] = string(t)
	}
	return strings.Join(words, ", ")
}

// sglang says whether the kind is an SGLang, of any version.
func (k Kind) sglang() bool {
	return k == KindSGLang || k == KindSGLangMonitor || k == KindSGLangLoadStat || k == KindSGLangPoll
}

// serves says whether the kind answers requests of OpenAI's API.
func (k Kind) serves() bool { return k != KindTriton }

// ranked says whether the kind tells of DP ranks.
func (k Kind) ranked() bool { return k.sglang() || k == KindVLLM || k == KindNative }

// listed says whether discovery lists engines of the kind.
func (k Kind) listed() bool { return k != KindNative }

// ports is the number of ports of an engine beside that of HTTP.
func (k Kind) ports(ranks int) int {
	switch k {
	case KindSGLangMonitor:
		return 1
	case KindSGLangLoadStat:
		return ranks
	default:
		return 0
	}
}

// pages returns the pages of the kind.
func (k Kind) pages(e face.Engine) http.Handler {
	switch k {
	case KindVLLM:
		return face.VLLM(e)
	case KindTGI:
		return face.TGI(e)
	case KindLlamaCPP:
		return face.LlamaCPP(e)
	case KindTRTLLM:
		return face.TensorRTLLM(e)
	case KindTriton:
		return face.Triton(e)
	case KindNative:
		return face.Bare()
	default:
		return face.SGLang(e)
	}
}
