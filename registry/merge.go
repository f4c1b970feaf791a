package registry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/loadplane/loadplane/store"
)

// Names of the sources that are always there, and what joins the names of
// several.
const (
	byFlag      = "flag"
	byFile      = "file"
	byAdmin     = "admin"
	bySeparator = "+"
)

// sources are what each source of discovery listed last.
type sources struct {
	flags, file, admin         []WorkerSpec
	flagsAt, fileAt, adminFrom store.Instant
	// feeds are those of the further sources.
	feeds []*feed
	// data is the last content of the workers file, and broken why it cannot be
	// used now.
	data   []byte
	broken error
	// merged are the workers of all, sorted by id.
	merged []found
	// clashes are the ids of which a warning was given, and dropped is how many
	// workers were above the limit.
	clashes map[string]bool
	dropped int
	// patient says that sources which delivered nothing are waited for, and
	// welcoming that reporters are given time to register again.
	patient, welcoming bool
}

// listed is what one source lists.
type listed struct {
	by    string
	specs []WorkerSpec
}

// lists returns what the sources list, those first that win.
func (s *sources) lists() []listed {
	all := []listed{{byFlag, s.flags}, {byFile, s.file}, {byAdmin, s.admin}}
	for _, f := range s.feeds {
		all = append(all, listed{f.name, f.good})
	}
	return all
}

// complete says whether every source delivered, or is not waited for any more.
func (s *sources) complete() bool {
	return !s.patient || !slices.ContainsFunc(s.feeds, func(f *feed) bool { return !f.took })
}

// expectsMore says that workers may be about to register again, and nothing else
// is listed to wait for.
func (s *sources) expectsMore() bool { return s.welcoming && len(s.merged) == 0 }

// merge returns the workers of all sources, sorted by id and at most as many as
// are allowed. The caller holds r.discovering.
func (r *Registry) merge() []found {
	all, clashes := mergeLists(r.sources.lists())
	for id := range news(clashes, r.sources.clashes) {
		r.log.Warn("worker ignored, a source that wins names another one so", "worker", cut(id))
	}
	r.sources.clashes = clashes
	all = r.limit(all)
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// limit drops the workers above the limit. Those that are there stay.
func (r *Registry) limit(all []found) []found {
	dropped := max(0, len(all)-r.opts.MaxWorkers)
	r.metrics.dropped.Set(float64(dropped))
	changed := dropped != r.sources.dropped
	r.sources.dropped = dropped
	if dropped == 0 {
		return all
	}
	if changed {
		r.roll.dropped.Do(func() {
			r.log.Error("workers above the limit dropped", "limit", r.opts.MaxWorkers, "dropped", dropped)
		})
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	rank := func(f *found) int {
		switch {
		case f.duplicate:
			return 2
		case r.workers[f.ID] == nil:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b found) int { return rank(&a) - rank(&b) })
	return all[:r.opts.MaxWorkers]
}

// mergeLists returns the workers of several lists, those first that win. Workers
// of two lists with one origin are one: the list that wins names it, and the
// other one says what the first leaves open. Of two in one list, the lowest id
// keeps the origin. An id that a winning list gave to another origin is taken:
// the worker is left out, and its id is a clash.
func mergeLists(lists []listed) (all []found, clashes map[string]bool) {
	m := merger{taken: make(map[string]bool), keepers: make(map[string]*keeper), clashes: make(map[string]bool)}
	for rank, l := range lists {
		specs := make([]*WorkerSpec, len(l.specs))
		for i := range l.specs {
			specs[i] = &l.specs[i]
		}
		slices.SortFunc(specs, func(a, b *WorkerSpec) int { return cmp.Compare(a.ID, b.ID) })
		for _, s := range specs {
			m.add(s, l.by, rank)
		}
	}
	return m.all, m.clashes
}

// keeper is who has an origin: the place among the workers, and the last list
// that named it.
type keeper struct{ place, rank int }

// merger is a merge in the making.
type merger struct {
	all     []found
	taken   map[string]bool
	keepers map[string]*keeper
	clashes map[string]bool
}

func (m *merger) add(s *WorkerSpec, by string, rank int) {
	k := m.keepers[s.Origin]
	switch {
	case k != nil && k.rank < rank:
		f := &m.all[k.place]
		f.join(s)
		f.by += bySeparator + by
		k.rank = rank
	case m.taken[s.ID]:
		m.clashes[s.ID] = true
	default:
		m.taken[s.ID] = true
		if k == nil {
			m.keepers[s.Origin] = &keeper{len(m.all), rank}
		}
		m.all = append(m.all, found{WorkerSpec: *s, by: by, duplicate: k != nil})
	}
}

// join takes over what s leaves open from what another source says of the same
// engine.
func (s *WorkerSpec) join(other *WorkerSpec) {
	s.Role = cmp.Or(s.Role, other.Role)
	if s.Models == nil {
		s.Models = other.Models
	}
	if s.reporterPort() == 0 {
		s.ReporterPort = other.ReporterPort
	}
	s.Labels = joinLabels(s.Labels, other.Labels)
	s.Zone = cmp.Or(s.Zone, other.Zone)
	s.Dialect = cmp.Or(s.Dialect, other.Dialect)
	s.TokenFile = cmp.Or(s.TokenFile, other.TokenFile)
	s.CAFile = cmp.Or(s.CAFile, other.CAFile)
	s.Interval = cmp.Or(s.Interval, other.Interval)
	s.MaxRunning = cmp.Or(s.MaxRunning, other.MaxRunning)
	s.UID = cmp.Or(s.UID, other.UID)
	s.Draining = s.Draining || other.Draining
	s.NoEngine = s.NoEngine || other.NoEngine
	for _, p := range other.Peers {
		if !slices.Contains(s.Peers, p) && len(s.Peers) < maxListed {
			s.Peers = append(slices.Clip(s.Peers), p)
		}
	}
}

// joinLabels returns those of named, and of others those that it does not name,
// up to the limit.
func joinLabels(named, others map[string]string) map[string]string {
	if len(named) == 0 {
		return others
	}
	if len(others) == 0 {
		return named
	}
	all := maps.Clone(named)
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if _, ok := all[name]; !ok && len(all) < maxListed {
			all[name] = others[name]
		}
	}
	return all
}

// noteSources tells the store how the sources are. The caller holds
// r.discovering.
func (r *Registry) noteSources() {
	s := &r.sources
	var all []store.SourceStatus
	add := func(by string, specs []WorkerSpec, at store.Instant, err error) {
		st := store.SourceStatus{Name: by, Synced: true, Workers: len(specs), Listed: at}
		if err != nil {
			st.Error = cut(err.Error())
		}
		all = append(all, st)
	}
	if len(s.flags) > 0 {
		add(byFlag, s.flags, s.flagsAt, nil)
	}
	if r.opts.WorkersFile != "" {
		add(byFile, s.file, s.fileAt, s.broken)
	}
	if s.adminFrom != 0 {
		add(byAdmin, s.admin, s.adminFrom, nil)
	}
	for _, f := range s.feeds {
		all = append(all, f.status(s.patient))
	}
	if r.opts.Registration != RegistrationOff {
		all = append(all, r.registrationStatus())
	}
	r.opts.Store.NoteSources(all)
}

// registrationStatus is how registration is as a source. It has no list, and
// counts as synced once reporters had time to register again, or are not waited
// for.
func (r *Registry) registrationStatus() store.SourceStatus {
	r.mu.RLock()
	defer r.mu.RUnlock()
	st := store.SourceStatus{Name: byRegistration, Synced: r.told || !r.sources.welcoming}
	for origin := range r.tenants {
		if r.keepers[origin].unlisted() {
			st.Workers++
		}
	}
	return st
}

// welcomeFor is how long reporters are given to register again after a start.
func (o *Options) welcomeFor() time.Duration { return max(3*o.ReportInterval, o.StaleAfter) }
