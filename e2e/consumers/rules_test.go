package consumers

import (
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// TestConsumersKeepTheRules lets a plane say what a client must refuse, endure
// or understand, to every consumer that watches.
func TestConsumersKeepTheRules(t *testing.T) {
	for _, c := range consumers {
		if !c.watches {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range scripts() {
				if c.resumes || !s.binary {
					t.Run(s.name, func(t *testing.T) { s.play(t, c) })
				}
			}
		})
	}
}

// shows accepts a version with workers.
func shows(version uint64, ids string) func(line) bool {
	return func(l line) bool { return l.Version == version && l.ids() == ids && l.valid() == len(l.Workers) }
}

func scripts() []script {
	a, b := someone(1, "a", 3), someone(2, "b", 0)
	again := someone(3, "a", 8)
	ab := content{a, b}
	// begin is followed by something that ends the stream, and a full then.
	refused := func(name string, bad ...*message) script {
		return script{
			name: name, acts: []act{{says: bad}, {says: []*message{full(9, ab)}}},
			resumes: []uint64{0, 0}, want: shows(9, "a b"),
			never: func(l line) bool { return l.Version == 4 || l.Version > 5 && l.Version != 9 },
		}
	}
	binary := func(s script) script {
		s.binary = true
		return s
	}
	all := []script{
		refused("delta first", delta(6, ab, &pb.Delta{BaseVersion: 5, Workers: ab})),
		refused("delta on another version", full(5, ab), delta(8, ab, &pb.Delta{BaseVersion: 7})),
		refused("heartbeat of another version", full(5, ab), heartbeat(6, ab)),
		refused("lower version", full(5, ab), full(4, ab)),
		refused("two lineages", full(5, ab), ofLineage("b", false, full(6, ab))),
		binary(refused("chunk missing", chunkOf(0, 3, full(6, content{a})), chunkOf(2, 3, full(6, content{b})))),
		binary(refused("chunk of another version", chunkOf(0, 2, full(6, content{a})), chunkOf(1, 2, says(7, ab, fullOf(content{b}))))),
		binary(refused("chunk on another version", full(5, content{a}),
			chunkOf(0, 2, delta(6, nil, &pb.Delta{BaseVersion: 4})), chunkOf(1, 2, delta(6, ab, &pb.Delta{BaseVersion: 5, Workers: content{b}})))),
		binary(refused("no chunk zero", chunkOf(1, 2, full(6, ab)))),
		binary(refused("digest", full(5, ab), with(delta(6, ab, &pb.Delta{BaseVersion: 5}), func(m *message) { m.Digest++ }))),
		binary(refused("no cursor", with(full(6, ab), func(m *message) { m.Cursor = nil }))),
		binary(refused("no event", full(5, ab), with(full(6, ab), func(m *message) { m.Event = nil }))),
		{
			name: "chunks", binary: true, acts: []act{{says: []*message{
				chunkOf(0, 2, says(1, nil, fullOf(content{a}))), chunkOf(1, 2, says(1, ab, fullOf(content{b}))),
			}}},
			resumes: []uint64{0}, want: shows(1, "a b"), never: func(l line) bool { return len(l.Workers) == 1 },
		},
		{
			name: "chunks of an ended stream", binary: true, acts: []act{
				{says: []*message{full(1, ab), chunkOf(0, 2, delta(2, nil, &pb.Delta{BaseVersion: 1}))}, closes: true},
				{says: []*message{delta(2, content{b}, &pb.Delta{BaseVersion: 1, Removed: removed(1, "a")})}},
			},
			resumes: []uint64{0, 1}, want: shows(2, "b"),
		},
		{
			name: "removals before changes", binary: true, acts: []act{{says: []*message{
				full(1, ab),
				delta(2, content{again, b}, &pb.Delta{
					BaseVersion: 1, Workers: content{again}, Removed: append(removed(1, "a"), removed(9, "b")...),
				}),
			}}},
			resumes: []uint64{0}, want: func(l line) bool { return shows(2, "a b")(l) && *l.worker("a").Requests == 8 },
		},
	}
	return append(all, endings(ab)...)
}

func removed(row uint32, id string) []*pb.RemovedWorker {
	return []*pb.RemovedWorker{{Row: row, WorkerId: id}}
}

// endings are scripts of how streams end, and of time.
func endings(ab content) []script {
	odd := &pb.Worker{Row: 7, WorkerId: "odd", Freshness: 99, ContentHash: 5}
	one := content{someone(1, "a", 3)}
	goAway := &message{Event: &pb.WatchSnapshotsResponse_GoAway{GoAway: &pb.GoAway{Reason: "draining", ReconnectWithinMs: 50}}}
	return []script{
		{
			name: "what is not known", binary: true, acts: []act{{says: []*message{full(1, append(content{odd}, ab...))}}}, resumes: []uint64{0},
			want: func(l line) bool {
				w := l.worker("odd")
				return w.Freshness == "unknown" && !w.Valid && w.Requests == nil && *l.worker("b").Requests == 0
			},
		},
		{
			name: "go_away", acts: []act{{says: []*message{full(1, ab), says(1, ab, goAway)}}, {says: []*message{heartbeat(1, ab), full(2, ab)}}},
			resumes: []uint64{0, 1}, want: shows(2, "a b"),
		},
		{
			name: "silence", acts: []act{
				{says: []*message{with(full(1, ab), func(m *message) { m.HeartbeatIntervalMs = 100 })}},
				{says: []*message{heartbeat(1, ab), full(2, ab)}},
			},
			resumes: []uint64{0, 1}, want: shows(2, "a b"),
		},
		{
			name: "closed", acts: []act{{says: []*message{full(1, ab)}, closes: true}, {says: []*message{heartbeat(1, ab), full(2, ab)}}},
			resumes: []uint64{0, 1}, want: shows(2, "a b"),
		},
		{
			name: "warming lineage that knows less", acts: []act{
				{says: []*message{full(5, ab)}, closes: true},
				{says: []*message{
					ofLineage("b", true, full(1, one)), ofLineage("b", true, heartbeat(1, one)),
					ofLineage("b", true, delta(2, one, &pb.Delta{BaseVersion: 1})), ofLineage("b", false, heartbeat(2, one)),
				}},
			},
			resumes: []uint64{0, 5}, never: func(l line) bool { return l.Lineage == "b" && l.Warming },
			want: func(l line) bool { return l.Lineage == "b" && shows(2, "a")(l) },
		},
		{
			name: "warming lineage that knows as much", acts: []act{
				{says: []*message{full(5, one)}, closes: true}, {says: []*message{ofLineage("b", true, full(1, ab))}},
			},
			resumes: []uint64{0, 5}, want: func(l line) bool { return l.Lineage == "b" && l.Warming && shows(1, "a b")(l) },
		},
		{
			name: "validity beyond the limit", binary: true, acts: []act{{says: []*message{with(full(1, ab), func(m *message) { m.StaleAfterMs = 300 })}}},
			resumes: []uint64{0}, never: func(l line) bool { return len(l.Workers) > 0 && l.Workers[0].ValidFor > 300 },
			want: func(l line) bool { return l.Version == 1 && len(l.Workers) == 2 && l.valid() == 0 },
		},
		{
			// The second message took 300 ms longer than the first, by its clock;
			// what it says is valid for 100 ms more is so no longer.
			name: "message read late", late: true, binary: true, acts: []act{{says: []*message{
				full(1, ab), with(full(2, ab), func(m *message) { m.Liveness.Workers[0].ValidUntilMs = clock + 100 }),
			}}},
			resumes: []uint64{0}, never: func(l line) bool { return l.Version == 2 && l.worker("a").Valid },
			want: func(l line) bool { return l.Version == 2 && l.worker("b").Valid },
		},
	}
}
