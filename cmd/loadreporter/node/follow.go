package node

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/build"
	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/proto"
)

func (n *Node) sample() source.Snapshot {
	s, _ := n.opts.Source.Latest()
	return s
}

// pushed builds a report for a router.
func (n *Node) pushed(now time.Time) *loadmonitorv1.LoadReport {
	r := n.builder.Push(now)
	n.metrics.built("push", store.Status(r.GetStatus()))
	return r
}

// native builds a report for a plane; nil for nothing to say yet.
func (n *Node) native(now time.Time) *loadplanev1.EngineReport {
	r := n.builder.Native(now)
	if r == nil {
		return nil
	}
	n.metrics.built("native", store.Status(r.GetStatus()))
	return r
}

func (n *Node) wantPush(target string, interval time.Duration) {
	n.opts.Source.Want("push/"+target, interval)
}

func (n *Node) alignPush(target string, due time.Time) {
	n.opts.Source.Align("push/"+target, due)
}

// registration is what planes are told of the engine.
func (n *Node) registration(s *source.Snapshot) *loadplanev1.RegisterRequest {
	id := n.opts.Identity
	if len(id.Models) == 0 {
		id.Models = s.Facts.Models
	}
	return &loadplanev1.RegisterRequest{
		Url:              n.opts.Advertise,
		Role:             loadplanev1.Role(cmp.Or(id.Role, s.Facts.Role)),
		Models:           id.Models,
		Zone:             id.Zone,
		Labels:           n.opts.Labels,
		ReportIntervalMs: uint32(n.opts.Interval.Milliseconds()),
		Engine:           s.Facts.Family,
		EngineVersion:    s.Facts.Version,
	}
}

// sameRegistration says that registration makes the same of two facts.
func sameRegistration(a, b *registry.Facts) bool {
	return a.Role == b.Role && a.Family == b.Family && a.Version == b.Version && slices.Equal(a.Models, b.Models)
}

// follow acts on each sample until ctx ends.
func (n *Node) follow(ctx context.Context) {
	// Planes were told nothing of the engine before the first sample.
	f := follower{node: n, told: n.registration(&source.Snapshot{})}
	for {
		s, next := n.opts.Source.Latest()
		f.see(&s)
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// follower compares samples with those before. It is for one goroutine.
type follower struct {
	node *Node
	last source.Snapshot
	// told is what planes were told of the engine last.
	told *loadplanev1.RegisterRequest
	// status is the verdict on the last sample.
	status store.Status
}

// see acts on a sample: reports go out at once where it answers a hint and
// differs from the one before, and where the verdict changed.
func (f *follower) see(s *source.Snapshot) {
	n := f.node
	status := build.Judge(s, time.Now(), n.opts.StaleAfter).Status
	turned := f.status != status && f.status != store.StatusUnspecified
	answered := n.answered(s)
	if turned || answered && !sameLoad(&f.last, s) {
		n.metrics.hurried.Inc()
		n.hurry()
	}
	if !sameRegistration(&f.last.Facts, &s.Facts) {
		f.tellFacts(s)
	}
	f.last, f.status = *s, status
}

// answered says whether a hint came before the sample was asked for. Hints that
// came since are not answered by it.
func (n *Node) answered(s *source.Snapshot) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hinted.IsZero() || s.Reason != "" || s.Taken.Before(n.hinted) {
		return false
	}
	if n.hinted = (time.Time{}); n.last.After(s.Taken) {
		n.hinted = n.last
	}
	return true
}

func (n *Node) hurry() {
	n.targets.Hurry()
	for _, p := range n.planes {
		p.reporter.Hurry()
	}
}

// sameLoad compares the values of two samples.
func sameLoad(a, b *source.Snapshot) bool {
	return a.Source == b.Source && slices.EqualFunc(a.Ranks, b.Ranks, func(x, y ingest.RankReport) bool { return x.Rank == y.Rank })
}

// tellFacts registers anew where the engine turned out to be another.
func (f *follower) tellFacts(s *source.Snapshot) {
	if len(f.node.planes) == 0 {
		return
	}
	now := f.node.registration(s)
	if !proto.Equal(f.told, now) {
		for _, p := range f.node.planes {
			p.reporter.Update(proto.CloneOf(now))
		}
	}
	f.told = now
}
