package node

import (
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/build"
	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/loadplane/loadplane/store"
)

// Status is the state of a Node as JSON. It is a plain value.
type Status struct {
	// Engine is what is known of the engine.
	Engine EngineStatus `json:"engine"`
	// Sample is the state of sampling.
	Sample SampleStatus `json:"sample"`
	// Reports and Hints count since the process started.
	Reports uint64 `json:"reports"`
	Hints   uint64 `json:"hints"`
	// Targets are the routers, Planes the planes that are reported to.
	Targets []TargetStatus `json:"targets"`
	Planes  []PlaneStatus  `json:"planes"`
}

// EngineStatus is what is known of the engine. Empty fields are unknown. It is
// a plain value.
type EngineStatus struct {
	Advertise string   `json:"advertise"`
	Source    string   `json:"source_instance_id"`
	Family    string   `json:"family"`
	Version   string   `json:"version"`
	Models    []string `json:"models"`
	Role      string   `json:"role"`
	// Missing are fields that the push dialect cannot be without.
	Missing []string `json:"missing_for_push"`
}

// SampleStatus is the state of sampling. It is a plain value.
type SampleStatus struct {
	Status string `json:"status"`
	Error  string `json:"error"`
	Ranks  int    `json:"ranks"`
	// AgeMs is the age of the last good sample in milliseconds; null without.
	AgeMs *int64 `json:"age_ms"`
}

// TargetStatus is the state of the reports to one router. It is a plain value.
type TargetStatus struct {
	Target     string `json:"target"`
	IntervalMs int64  `json:"report_interval_ms"`
	LeaseMs    int64  `json:"lease_left_ms"`
	Connected  bool   `json:"connected"`
	Reports    uint64 `json:"reports"`
	Error      string `json:"error"`
}

// PlaneStatus is the state of the reports to one plane. It is a plain value.
type PlaneStatus struct {
	Plane      string `json:"plane"`
	Worker     string `json:"worker_id"`
	Connected  bool   `json:"connected"`
	IntervalMs int64  `json:"report_interval_ms"`
	Reports    uint64 `json:"reports"`
	// Error says what is wrong while there is no connection, Refusal why the
	// plane refused a report last; both are empty for nothing.
	Error   string `json:"error"`
	Refusal string `json:"last_refusal"`
}

// Status returns a Status.
func (n *Node) Status() any {
	s, now := n.sample(), time.Now()
	v := build.Judge(&s, now, n.opts.StaleAfter)
	id := n.builder.Identity()
	st := Status{
		Engine: EngineStatus{
			Advertise: n.opts.Advertise, Source: s.Source, Family: s.Facts.Family, Version: s.Facts.Version,
			Models: orEmpty(id.Models), Role: id.Role.String(), Missing: names(build.Missing(&s)),
		},
		Sample:  SampleStatus{Status: v.Status.String(), Error: v.Err, Ranks: len(s.Ranks)},
		Reports: n.builder.Built(), Hints: n.hintCount(),
		Targets: []TargetStatus{}, Planes: []PlaneStatus{},
	}
	if len(s.Ranks) > 0 {
		age := now.Sub(s.Taken).Milliseconds()
		st.Sample.AgeMs = &age
	}
	targets, _ := n.Targets()
	for i := range targets {
		st.Targets = append(st.Targets, targetStatus(&targets[i], now))
	}
	for _, p := range n.planes {
		st.Planes = append(st.Planes, p.status())
	}
	return st
}

func (n *Node) hintCount() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hints
}

func targetStatus(t *push.Target, now time.Time) TargetStatus {
	return TargetStatus{
		Target: t.Addr.String(), IntervalMs: t.Interval.Milliseconds(),
		LeaseMs: max(0, t.Expires.Sub(now).Milliseconds()), Connected: t.Connected, Reports: t.Reports, Error: t.Err,
	}
}

func (p *plane) status() PlaneStatus {
	s := p.reporter.Status()
	st := PlaneStatus{
		Plane: p.address, Worker: s.WorkerID, Connected: s.Connected, IntervalMs: s.Interval.Milliseconds(), Reports: s.Sent,
	}
	if s.LastError != nil && !s.Connected {
		st.Error = s.LastError.Error()
	}
	if !s.LastRefusal.At.IsZero() {
		st.Refusal = s.LastRefusal.Reason + ": " + s.LastRefusal.Message
	}
	return st
}

func names(fields []store.Field) []string {
	list := make([]string, len(fields))
	for i, f := range fields {
		list[i] = store.Fields[f].Name
	}
	return list
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
