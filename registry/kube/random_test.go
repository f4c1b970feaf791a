package kube

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestRandomSlices moves endpoints between the slices of two Services at
// random, with faults, and holds what comes of it to a model.
func TestRandomSlices(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	run(t, Options{Services: []string{"llm", "llm2"}}, nothing, func(b *bed) {
		random := rand.New(rand.NewPCG(seed, 1))
		m := &model{random: random, server: b.server}
		slices := make([]*discoveryv1.EndpointSlice, 8)
		for range 3000 {
			i := random.IntN(len(slices))
			switch n := random.IntN(100); {
			case n < 3:
				m.disturb()
			case n < 13 && slices[i] != nil:
				b.server.Delete(slices[i])
				slices[i] = nil
			default:
				slices[i] = randomSlice(random, i)
				b.server.Put(slices[i])
			}
			if random.IntN(4) == 0 {
				<-time.After(rand.N(40 * time.Millisecond))
			}
		}
		m.calm()
		b.pass(20 * time.Minute)
		b.want(wantSlices(slices))
		b.wantError()
	})
}

// randomSlice returns a slice of one of the Services with endpoints that
// others may have too. A Pod has one address.
func randomSlice(random *rand.Rand, i int) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for range random.IntN(6) {
		p := random.IntN(20)
		conditions := [][]bool{nil, {true}, {false}, {false, true, true}, {false, false, true}, {true, true, true}}[random.IntN(6)]
		endpoints = append(endpoints, endpoint(fmt.Sprintf("p%02d", p), fmt.Sprintf("10.0.0.%d", 1+p), conditions...))
	}
	return slice(fmt.Sprintf("s%d", i), []string{"llm", "llm2"}[i%2], endpoints...)
}

// wantSlices computes the list of workers in the plainest way.
func wantSlices(all []*discoveryv1.EndpointSlice) string {
	ready, terminating := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		if s == nil {
			continue
		}
		for _, e := range s.Endpoints {
			w := fmt.Sprintf("ns/%s/8000@%s:8000", e.TargetRef.Name, e.Addresses[0])
			switch {
			case e.Conditions.Terminating != nil && *e.Conditions.Terminating:
				terminating[w] = true
			case e.Conditions.Ready == nil || *e.Conditions.Ready:
				ready[w] = true
			}
		}
	}
	var words []string
	for w := range ready {
		words = append(words, w)
	}
	for w := range terminating {
		if !ready[w] {
			words = append(words, w+"!")
		}
	}
	return strings.TrimSpace(sorted(words))
}
