package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// preference has the dialects that are asked about, the best first.
var preference = []struct {
	dialect store.Dialect
	ask     func(*session, context.Context) registry.Offer
}{
	{store.DialectMonitor, (*session).monitor},
	{store.DialectPush, (*session).push},
	{store.DialectLoadstat, (*session).loadstat},
	{store.DialectPoll, (*session).poll},
}

// preferred returns how many dialects are preferred to the one in use. None is
// preferred to one that is not asked about.
func preferred(using store.Dialect) int {
	for i, p := range preference {
		if p.dialect == using {
			return i
		}
	}
	return 0
}

// probe asks all questions, or those about dialects preferred to the one in
// use.
func (s *session) probe(ctx context.Context) {
	asks := len(preference)
	if using := s.target.Using; using == store.DialectUnspecified {
		s.learn(ctx)
	} else if asks = preferred(using); asks > 0 && !s.foreign() {
		s.inform(ctx)
	}
	for _, p := range preference[:asks] {
		s.offers = append(s.offers, p.ask(s, ctx))
	}
}

// family is the kind of the engine, as far as it is known.
func (s *session) family() string { return cmp.Or(s.facts.Family, s.target.Facts.Family) }

// foreign says that the engine is known to be no SGLang.
func (s *session) foreign() bool {
	f := s.family()
	return f != "" && f != string(sample.SGLang)
}

// monitor says whether a load reporter takes connections.
func (s *session) monitor(ctx context.Context) registry.Offer {
	ports := s.reporterPorts()
	if len(ports) == 0 {
		return s.lacks(store.DialectMonitor, "load_reporter_port")
	}
	o := registry.Offer{Dialect: store.DialectMonitor}
	for _, port := range ports {
		o.Detail = "port " + strconv.Itoa(port)
		err := s.connect(ctx, port)
		if err == nil {
			o.Verdict, o.Reason, s.reporter = registry.VerdictOffered, "", port
			return o
		}
		o.Reason, o.Detail = registry.ConnectReason(err), o.Detail+": "+err.Error()
	}
	return o
}

// reporterPorts are the ports at which a reporter may be: the one that is
// configured, and the one that the engine names, or named when it was asked
// before.
func (s *session) reporterPorts() (ports []int) {
	known := s.target.ReporterPort
	if known != 0 && (!s.informed || known != s.target.Facts.ReporterPort) {
		ports = append(ports, known)
	}
	if named := s.facts.ReporterPort; named != 0 && (len(ports) == 0 || named != known) {
		ports = append(ports, named)
	}
	return ports
}

// connect says whether a port of the engine's host takes connections.
func (s *session) connect(ctx context.Context, port int) error {
	u, err := url.Parse(s.target.URL)
	if err != nil {
		return err
	}
	leave, err := s.target.Line.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	c, err := s.prober.opts.Dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return c.Close()
}

// loadstat says whether the engine names the sockets of its load.
func (s *session) loadstat(context.Context) registry.Offer {
	l := s.facts.LoadStat
	if l.Port == 0 {
		return s.lacks(store.DialectLoadstat, "load_endpoint_port_base")
	}
	return registry.Offer{Dialect: store.DialectLoadstat, Verdict: registry.VerdictOffered, Detail: Sockets(l)}
}

// Sockets names the sockets of an engine that publishes its load, for people.
func Sockets(l registry.LoadStat) string {
	text := fmt.Sprintf("port %d", l.Port)
	if l.Ranks > 1 {
		text = fmt.Sprintf("ports %d to %d", l.Port, l.Port+l.Ranks-1)
	}
	if l.Host != "" {
		text += " of " + l.Host
	}
	return text
}

// lacks says why a dialect is not offered of which /server_info would tell, by
// a key that it does not have.
func (s *session) lacks(d store.Dialect, key string) registry.Offer {
	o := registry.Offer{Dialect: d, Verdict: registry.VerdictAbsent, Reason: registry.ReasonUnsupported}
	switch {
	case s.informed:
		o.Detail = fmt.Sprintf("GET %s: no %s", s.info.Path, key)
		return o
	case s.foreign():
		o.Detail = "not of " + s.family()
		return o
	}
	o.Reason, o.Detail = s.info.Reason, fmt.Sprintf("GET %s: %s", s.info.Path, s.info.outcome())
	switch {
	case s.away.Reason != "":
		o.Verdict, o.Detail = registry.VerdictUnknown, s.info.outcome()
	case o.Reason == "":
		// A page that is no SGLang's may be of one that is not itself yet.
		o.Verdict, o.Reason = registry.VerdictUnknown, registry.ReasonBadAnswer
	case !survey.Absent(s.info.Status) && o.Reason != registry.ReasonAuth:
		o.Verdict = registry.VerdictUnknown
	}
	return o
}

// push says whether the engine has a push reporter: what it takes by POST, it
// answers with 405 where it is asked by GET.
func (s *session) push(ctx context.Context) registry.Offer {
	a, _ := s.get(ctx, pushPath)
	o := registry.Offer{Dialect: store.DialectPush, Reason: a.Reason, Detail: fmt.Sprintf("GET %s: %s", pushPath, a.outcome())}
	switch {
	case a.Status == http.StatusMethodNotAllowed && s.refusesAll(ctx):
		o.Verdict = registry.VerdictAbsent
		o.Detail += ", as for every path"
	case a.Status == http.StatusMethodNotAllowed:
		o.Verdict, o.Reason = registry.VerdictOffered, ""
	case survey.Absent(a.Status), a.Reason == registry.ReasonAuth:
		o.Verdict = registry.VerdictAbsent
	case a.Reason == "":
		// Whoever answers 200 to that is no engine, or not itself yet.
		o.Reason = registry.ReasonBadAnswer
	}
	return o
}

// refusesAll says that the engine answers 405 to GET where an engine with a
// push reporter has a page.
func (s *session) refusesAll(ctx context.Context) bool {
	for _, a := range s.asked {
		if a.Path == serverInfoPath {
			return a.Status == http.StatusMethodNotAllowed
		}
	}
	a, _ := s.get(ctx, serverInfoPath)
	return a.Status == http.StatusMethodNotAllowed
}

// poll says whether load can be read from a page of the engine.
func (s *session) poll(ctx context.Context) registry.Offer {
	o := registry.Offer{Dialect: store.DialectPoll}
	if s.away.Reason != "" {
		o.Reason, o.Detail = s.away.Reason, s.away.outcome()
		return o
	}
	leave, err := s.target.Line.Join(ctx)
	if err != nil {
		o.Reason, o.Detail = registry.ReasonConnectFailed, err.Error()
		return o
	}
	defer leave()
	s.target.Facts = s.facts
	search := survey.Survey{
		Client: s.client, Clock: s.prober.opts.Clock, Target: s.target, Timeout: s.timeout(), Behind: s.target.Behind,
	}
	s.survey = search.Run(ctx)
	for _, p := range s.survey.Pages {
		s.asked = append(s.asked, askedOf(p))
		if why := (*survey.Panic)(nil); errors.As(p.Err, &why) {
			s.prober.crashed(&s.target, why)
		}
	}
	if path := s.survey.Spared; path != "" {
		s.asked = append(s.asked, Asked{Path: path, Reason: ReasonLeftAlone, Detail: "it may be a queue that reading empties"})
	}
	if c := s.survey.Chosen; c != nil {
		o.Verdict = registry.VerdictOffered
		o.Detail = c.Says()
		return o
	}
	told := askedOf(s.survey.Telling)
	o.Reason, o.Detail = told.Reason, fmt.Sprintf("GET %s: %s", told.Path, told.outcome())
	if s.survey.Complete {
		o.Verdict = registry.VerdictAbsent
	}
	return o
}
