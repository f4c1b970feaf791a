package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Name is the name of the source.
const Name = "dns"

// patience is how long the first list waits for names that were never answered.
const patience = 30 * time.Second

// systemConfig is where the system names its servers and search list.
const systemConfig = "/etc/resolv.conf"

// Options configure a Source.
type Options struct {
	// Records are the names to ask for. At least one.
	Records []Record
	// MinTTL and MaxTTL bound the time until a name is asked for again, whatever
	// its time to live is; 0 means 5 s and 60 s. A name that fails is asked for
	// again after MinTTL, and after twice the last wait up to MaxTTL. Names with
	// a suffix of the search list keep to the one that was answered first.
	MinTTL, MaxTTL time.Duration
	// Timeout bounds one question to one server; 0 means 2 s.
	Timeout time.Duration
	// Servers are host:port addresses that are asked in turn; nil for those of
	// the system.
	Servers []string
	// Exchange asks a server; nil for the network.
	Exchange Exchange
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// complete fills in defaults and names what is wrong.
func (o *Options) complete() error {
	o.MinTTL, o.MaxTTL = cmp.Or(o.MinTTL, 5*time.Second), cmp.Or(o.MaxTTL, time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	if o.Exchange == nil {
		o.Exchange = exchange
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case len(o.Records) == 0:
		return errors.New("option Records is required")
	case o.MinTTL < time.Second || o.MaxTTL < o.MinTTL:
		return fmt.Errorf("options MinTTL %s and MaxTTL %s must be 1 s or more and in order", o.MinTTL, o.MaxTTL)
	case o.Timeout < 0:
		return errors.New("option Timeout must be positive")
	}
	return nil
}

// Source discovers workers by the DNS. It implements registry.Source, and its
// methods are safe for concurrent use.
type Source struct {
	opts     Options
	metrics  *metrics
	resolver *resolver
}

// New checks the options and reads the system's configuration of the DNS. It
// starts nothing. Errors name the option.
func New(opts Options) (*Source, error) {
	if err := opts.complete(); err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	config := &dns.ClientConfig{Ndots: 1, Port: "53"}
	if opts.Servers == nil {
		var err error
		if config, err = dns.ClientConfigFromFile(systemConfig); err != nil {
			return nil, fmt.Errorf("dns: %w", err)
		}
		for _, host := range config.Servers {
			opts.Servers = append(opts.Servers, net.JoinHostPort(host, config.Port))
		}
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	return &Source{opts, m, &resolver{opts.Servers, config, opts.Timeout, opts.Exchange}}, nil
}

// Name implements registry.Source.
func (s *Source) Name() string { return Name }

// outcome is what one asking for a record gave.
type outcome struct {
	index int
	specs []registry.WorkerSpec
	err   error
}

// Run implements registry.Source: it delivers once every name was answered, or
// after 30 s what there is, and then at each change. A name that fails keeps its
// last workers; the error names all that fail.
func (s *Source) Run(ctx context.Context, deliver func(registry.Listing)) {
	outcomes := make(chan outcome)
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for i := range s.opts.Records {
		asking.Go(func() { s.keep(ctx, i, outcomes) })
	}
	b := book{records: s.opts.Records, held: make([]held, len(s.opts.Records))}
	waited := time.NewTimer(patience)
	defer waited.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-waited.C:
			b.impatient = true
			b.publish(false, deliver)
		case o := <-outcomes:
			b.take(&o)
			b.publish(o.err == nil, deliver)
		}
	}
}

// keep asks for one record again and again until ctx ends.
func (s *Source) keep(ctx context.Context, i int, outcomes chan<- outcome) {
	a := asker{source: s, record: &s.opts.Records[i], lines: rate.Sometimes{First: 8, Interval: time.Minute}}
	failed := time.Duration(0)
	for ctx.Err() == nil {
		specs, wait, err := a.once(ctx)
		if ctx.Err() != nil {
			return
		}
		a.tell(err)
		if failed = min(2*failed, s.opts.MaxTTL); err == nil {
			failed = 0
		} else {
			failed = max(failed, s.opts.MinTTL)
			wait = failed
		}
		select {
		case <-ctx.Done():
			return
		case outcomes <- outcome{i, specs, err}:
		}
		pause(ctx, wait)
	}
}

// asker asks for one record. It is for one goroutine.
type asker struct {
	source *Source
	record *Record
	// settled is the full name that was answered; empty while none was.
	settled string
	// panicked says that the last time ended by a panic, which is in the log.
	panicked bool
	// failing is why the last time failed, and lines bounds the lines about it.
	failing store.Reason
	lines   rate.Sometimes
}

// tell logs that the name begins to fail, or fails in another way, or is answered
// again.
func (a *asker) tell(err error) {
	was := a.failing
	a.failing = ""
	if err != nil {
		a.failing = reasonOf(err)
	}
	if a.failing == was || a.panicked {
		return // It is in the log.
	}
	a.lines.Do(func() {
		log := a.source.opts.Logger.With("name", a.record.Name)
		switch {
		case err == nil:
			log.Info("name answered again")
		case a.settled != "":
			log.Warn("name not answered, its last workers kept", "reason", string(a.failing), "error", err.Error())
		default:
			log.Warn("name not answered, it has no workers yet", "reason", string(a.failing), "error", err.Error())
		}
	})
}

// once asks, and returns how long the answer holds. A panic on the way is a
// failure as others are.
func (a *asker) once(ctx context.Context) (specs []registry.WorkerSpec, wait time.Duration, err error) {
	began := time.Now()
	defer func() {
		p := recover()
		if p != nil {
			err = a.caught(p)
		}
		if a.panicked = p != nil; ctx.Err() == nil {
			a.source.metrics.lookup(err, time.Since(began))
		}
	}()
	f, err := a.source.resolver.lookup(ctx, a.record, a.settled)
	if err != nil {
		return nil, 0, err
	}
	if specs, err = a.record.specs(f.at); err != nil {
		return nil, 0, err
	}
	a.settled = f.name
	return specs, a.source.opts.spread(f.ttl), nil
}

// caught makes an error of a panic, and logs the first in a row.
func (a *asker) caught(p any) error {
	if !a.panicked {
		a.source.opts.Logger.Error("name lookup panicked", "name", a.record.Name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
	return failf(ReasonPanic, "the lookup panicked: %v", p)
}

// spread returns how long to wait for a time to live. Names that are asked for
// together part over time: the wait is up to a tenth shorter, or longer where
// it would be below MinTTL.
func (o *Options) spread(ttl time.Duration) time.Duration {
	ttl = min(ttl, o.MaxTTL)
	least := max(ttl-ttl/10, o.MinTTL)
	most := min(max(ttl, least+least/10), o.MaxTTL)
	return least + rand.N(most-least+1)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// held is what is known of one record: specs are nil before the first answer.
type held struct {
	specs []registry.WorkerSpec
	err   error
}

// book joins the records. It is for one goroutine.
type book struct {
	records []Record
	held    []held
	// impatient says that the first list waits for no name any more.
	impatient bool
	// list and failing are what was delivered last; listed says that a list was.
	list    []registry.WorkerSpec
	failing string
	listed  bool
}

// take notes an outcome. A failure leaves the workers.
func (b *book) take(o *outcome) {
	h := &b.held[o.index]
	if h.err = o.err; o.err == nil {
		h.specs = o.specs
	}
}

// publish delivers what changed: the list once each record was answered, or the
// wait for that is over. A list ends an error, so that one that stays is
// delivered again after it. Where nothing fails, an answer delivers the list
// again, which is not older than it then.
func (b *book) publish(answered bool, deliver func(registry.Listing)) {
	list, missing := b.join()
	failing := b.failures()
	complete := missing == 0 || b.impatient && missing < len(b.held)
	renewed := complete && (!b.listed || !reflect.DeepEqual(list, b.list) || failing == "" && answered)
	if renewed {
		b.list, b.listed = list, true
		deliver(registry.Listing{Specs: list})
	}
	if failing != "" && (renewed || failing != b.failing) {
		deliver(registry.Listing{Err: errors.New(failing)})
	}
	b.failing = failing
}

// join returns the workers of all records, those of the first that names them,
// and how many records were never answered.
func (b *book) join() (list []registry.WorkerSpec, missing int) {
	seen := make(map[string]bool)
	for i := range b.held {
		if b.held[i].specs == nil {
			missing++
		}
		for _, s := range b.held[i].specs {
			if !seen[s.ID] {
				seen[s.ID] = true
				list = append(list, s)
			}
		}
	}
	return list, missing
}

// failures says which records fail, and why. To have no answer is a failure
// only after a while.
func (b *book) failures() string {
	var all []string
	for i := range b.held {
		switch h := &b.held[i]; {
		case h.err != nil:
			all = append(all, b.records[i].Name+": "+h.err.Error())
		case h.specs == nil && b.impatient:
			all = append(all, b.records[i].Name+": no answer yet")
		}
	}
	return strings.Join(all, "; ")
}
