package sample

import (
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/promtext"
	"github.com/loadplane/loadplane/ingest/poll/sample/document"
	"github.com/loadplane/loadplane/registry"
)

// Recognize tells which family a page of metrics belongs to: the one with the
// most names on it, samples or not. JSON is TensorRT-LLM's where it is an array
// of iterations or an empty one. It keeps nothing and is safe for concurrent
// use.
func Recognize(page []byte) (Family, bool) {
	switch promtext.FormatOf(page) {
	case promtext.FormatJSON:
		if document.IsIterations(page) {
			return TensorRTLLM, true
		}
	case promtext.FormatText:
		return recognizeText(page)
	}
	return "", false
}

func recognizeText(page []byte) (Family, bool) {
	counts := make([]int, len(endpoints))
	for name := range promtext.Families(page) {
		for i, e := range endpoints {
			if e.text != nil && e.text.Has(name) {
				counts[i]++
			}
		}
	}
	best := 0
	for i, n := range counts {
		if n > counts[best] {
			best = i
		}
	}
	if counts[best] == 0 {
		return "", false
	}
	return endpoints[best].Family, true
}

// refuseText says why a page has no series of load.
func (s *Sampler) refuseText(page []byte) *registry.Refusal {
	if c := s.text.Counts(); c.Samples == 0 && c.Broken == 0 {
		return ingest.Refuse(ReasonNoData, "the page has no samples")
	}
	switch family, ok := recognizeText(page); {
	case !ok:
		return ingest.Refuse(ReasonNotRecognised, "the page has no metric of a known engine")
	case family != s.endpoint.Family:
		return ingest.Refuse(ReasonNotRecognised, "the page is of another engine: "+string(family))
	}
	return ingest.Refuse(ReasonNoLoad, "the page has no metric of load")
}
