package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Error says what is wrong with a configuration. It is immutable.
type Error struct {
	// Problems are the faults, each naming its setting and what is allowed.
	Problems []string
}

// Error returns the problems, one a line.
func (e *Error) Error() string { return strings.Join(e.Problems, "\n") }

// Errorf returns an *Error with one problem.
func Errorf(format string, args ...any) *Error {
	return &Error{Problems: []string{fmt.Errorf(format, args...).Error()}}
}

// Listener names one of the listeners.
type Listener string

// The listeners.
const (
	API    Listener = "api"
	Ingest Listener = "ingest"
	Ops    Listener = "ops"
	// Scaler is there only where it has an address.
	Scaler Listener = "scaler"
)

// Listeners returns all listeners, in the order in which they are bound.
func Listeners() []Listener { return []Listener{API, Ingest, Ops, Scaler} }

// Address returns the host:port of a listener as it is configured, empty for a
// Scaler that is not wanted.
func (c *Config) Address(l Listener) string {
	switch l {
	case API:
		return c.APIListen
	case Ingest:
		return c.IngestListen
	case Scaler:
		return c.ScalerListen
	default:
		return c.OpsListen
	}
}

// Insecure says whether the listener was named as allowed to be plaintext.
func (c *Config) Insecure(l Listener) bool {
	return slices.Contains(c.InsecureAllowPlaintext, string(l))
}

// TLS says whether the listener speaks TLS.
func (c *Config) TLS(l Listener) bool { return c.TLSCert != "" && !c.Insecure(l) }

// Validate returns a *Error with every value that is out of range and
// every listener that may not listen where it is told to. It reads no files.
func (c *Config) Validate() error {
	var p problems
	p.times(c)
	p.limits(c)
	p.dns(c)
	p.kubernetes(c)
	p.admin(c)
	p.oneOf("identity", c.Identity, IdentityPeer, IdentityOrigin)
	p.oneOf("registration", c.Registration, RegistrationOpen, RegistrationKnown, RegistrationOff)
	p.count("reporter_port", c.ReporterPort, 0, 65535)
	p.oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	p.oneOf("log_format", c.LogFormat, "auto", "json", "text")
	p.reportAddress(c.ReportAddress)
	p.security(c)
	for _, l := range Listeners() {
		if l != Scaler || c.ScalerListen != "" {
			p.listener(c, l)
		}
	}
	if len(p) == 0 {
		return nil
	}
	return &Error{Problems: p}
}

type problems []string

func (p *problems) addf(key, format string, args ...any) {
	*p = append(*p, key+": "+fmt.Sprintf(format, args...))
}

func (p *problems) duration(key string, v, low, high time.Duration) {
	if v < low || v > high {
		p.addf(key, "%v is not in %v to %v", v, low, high)
	}
}

func (p *problems) count(key string, v, low, high int) {
	if v < low || v > high {
		p.addf(key, "%d is not in %d to %d", v, low, high)
	}
}

func (p *problems) oneOf(key, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		p.addf(key, "%q is not one of %s", v, strings.Join(allowed, ", "))
	}
}

func (p *problems) times(c *Config) {
	p.duration("report_interval", c.ReportInterval, 10*time.Millisecond, time.Minute)
	p.duration("stale_after", c.StaleAfter, 3*c.ReportInterval, 10*time.Minute)
	p.duration("lease", c.Lease, 4*c.ReportInterval, time.Hour)
	p.duration("registration_timeout", c.RegistrationTimeout, 100*time.Millisecond, 30*time.Second)
	p.duration("poll_timeout", c.PollTimeout, 100*time.Millisecond, 30*time.Second)
	p.duration("settle", c.Settle, time.Millisecond, time.Second)
	p.duration("heartbeat", c.Heartbeat, 100*time.Millisecond, time.Minute)
	p.duration("write_timeout", c.WriteTimeout, 100*time.Millisecond, time.Minute)
	p.duration("drain_timeout", c.DrainTimeout, 500*time.Millisecond, 5*time.Minute)
}

func (p *problems) limits(c *Config) {
	p.count("max_workers", c.MaxWorkers, 1, 100_000)
	p.count("max_ranks", c.MaxRanks, 1, 4_096)
	p.count("max_leases_per_address", c.MaxLeasesPerAddress, 1, 100_000)
	p.count("max_reports_per_second", c.MaxReportsPerSecond, 10, 1_000_000)
	p.count("max_watchers", c.MaxWatchers, 1, 100_000)
	p.count("max_connections", c.MaxConnections, 1, 1_000_000)
	p.count("max_connections_per_address", c.MaxConnectionsPerAddress, 1, 1_000_000)
	p.prefixes("trusted_proxy", c.TrustedProxy)
	p.prefixes("egress_allow", c.EgressAllow)
	p.count("max_streams_per_connection", c.MaxStreamsPerConnection, 1, 999)
	p.count("metrics_workers", c.MetricsWorkers, 0, 1000)
	if c.MemoryLimitMiB != 0 {
		p.count("memory_limit_mib", c.MemoryLimitMiB, 64, 1<<24)
	}
}

func (p *problems) prefixes(key string, list []string) {
	for _, v := range list {
		if _, err := prefix(v); err != nil {
			p.addf(key, "%q is not an IP address or a CIDR", v)
		}
	}
}

// dns checks all but the names, which their source reads.
func (p *problems) dns(c *Config) {
	p.duration("dns_min_ttl", c.DNSMinTTL, time.Second, time.Hour)
	p.duration("dns_max_ttl", c.DNSMaxTTL, time.Second, 24*time.Hour)
	if c.DNSMinTTL > c.DNSMaxTTL {
		p.addf("dns_min_ttl", "%v is above dns_max_ttl, %v", c.DNSMinTTL, c.DNSMaxTTL)
	}
	for _, v := range c.DNSServer {
		host, port, err := net.SplitHostPort(v)
		if n, parseErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || parseErr != nil || n == 0 {
			p.addf("dns_server", "%q is not host:port", v)
		}
	}
	if len(c.DNSServer) > 0 && len(c.DNS) == 0 {
		p.addf("dns_server", "there is no name to ask for; give --dns, or leave it out")
	}
}

// kubernetes checks what is set together; the values are read by their source.
func (p *problems) kubernetes(c *Config) {
	p.oneOf("kubernetes_scheme", c.KubernetesScheme, "http", "https")
	services, selector := len(c.KubernetesServices) > 0, c.KubernetesSelector != ""
	switch {
	case !c.Kubernetes:
		p.alone(c)
	case services && selector:
		p.addf("kubernetes", "kubernetes_services and kubernetes_selector exclude each other; give one of them")
	case !services && !selector:
		p.addf("kubernetes", "nothing says which Pods are engines; give --kubernetes-services or --kubernetes-selector")
	}
}

// alone finds the settings that need Kubernetes where that is not asked for.
func (p *problems) alone(c *Config) {
	for _, setting := range []struct {
		key string
		set bool
	}{
		{"kubeconfig", c.Kubeconfig != ""},
		{"kubernetes_namespaces", len(c.KubernetesNamespaces) > 0},
		{"kubernetes_services", len(c.KubernetesServices) > 0},
		{"kubernetes_selector", c.KubernetesSelector != ""},
		{"kubernetes_port", c.KubernetesPort != ""},
	} {
		if setting.set {
			p.addf(setting.key, "it says nothing without kubernetes; give --kubernetes, or leave it out")
		}
	}
}

// maxSocketPath is what the address of a Unix socket holds on every system,
// bytes.
const maxSocketPath = 103

func (p *problems) admin(c *Config) {
	if len(c.AdminSocket) > maxSocketPath {
		p.addf("admin_socket", "the path has %d bytes, more than %d; choose a shorter one", len(c.AdminSocket), maxSocketPath)
	}
}

func (p *problems) reportAddress(v string) {
	if v == "" {
		return
	}
	addr, err := netip.ParseAddr(v)
	switch {
	case err != nil || addr.Zone() != "":
		p.addf("report_address", "%q is not an IP address without a zone", v)
	case addr.IsUnspecified() || addr.IsMulticast():
		p.addf("report_address", "%q is not an address that engines can dial", v)
	}
}

func (p *problems) security(c *Config) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		p.addf("tls_cert", "tls_cert and tls_key are given together or not at all")
	}
	if c.ClientCA != "" && c.TLSCert == "" {
		p.addf("client_ca", "client certificates need tls_cert and tls_key")
	}
	for _, name := range c.InsecureAllowPlaintext {
		p.oneOf("insecure_allow_plaintext", name, "api", "ingest", "ops", "scaler")
	}
}

// listener applies the rule that a listener beyond loopback needs TLS and an
// authenticator, or to be named as insecure.
func (p *problems) listener(c *Config, l Listener) {
	key, addr := string(l)+"_listen", c.Address(l)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		p.addf(key, "%q is not host:port", addr)
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.addf(key, "%q has no port in 0 to 65535", addr)
	} else if n != 0 {
		p.taken(c, l, addr)
	}
	if !LoopbackHost(host) && !c.Guarded(l) {
		p.addf(key, "%s", Advice(l, addr))
	}
}

// taken finds an earlier listener with the same address.
func (p *problems) taken(c *Config, l Listener, addr string) {
	for _, other := range Listeners() {
		if other == l {
			return
		}
		if c.Address(other) == addr {
			p.addf(string(l)+"_listen", "%q is taken by %s_listen", addr, other)
		}
	}
}

// Guarded says whether a listener may be reachable from other hosts.
func (c *Config) Guarded(l Listener) bool {
	return c.Insecure(l) || c.TLS(l) && (c.APITokenFile != "" || c.ClientCA != "")
}

// Advice says what to do about a listener beyond loopback that is not guarded.
func Advice(l Listener, addr string) string {
	return fmt.Sprintf("%s can be reached from other hosts; listen on a loopback address, or give --tls-cert and --tls-key with --api-token-file or --client-ca, or accept plaintext by --insecure-allow-plaintext=%s", addr, l)
}

// LoopbackHost says that host is plainly this machine: a loopback address or
// the name localhost.
func LoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// Discovers says whether there is a source of workers: a list, the DNS,
// Kubernetes, operators, or reporters that may register themselves.
func (c *Config) Discovers() bool {
	return len(c.Worker) > 0 || c.WorkersFile != "" || len(c.DNS) > 0 || c.Kubernetes || c.AdminSocket != "" ||
		c.Registration != RegistrationOff
}

// EgressPrefixes returns EgressAllow as prefixes. The configuration must be
// valid.
func (c *Config) EgressPrefixes() []netip.Prefix {
	var all []netip.Prefix
	for _, v := range c.EgressAllow {
		if p, err := prefix(v); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// prefix reads an address or a CIDR.
func prefix(v string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(v); err == nil {
		addr = addr.Unmap()
		return addr.Prefix(addr.BitLen())
	}
	return netip.ParsePrefix(v)
}

// Exempt says whether the limits per address and of new streams do not hold
// for an address: one on loopback, or of TrustedProxy.
func (c *Config) Exempt(addr netip.Addr) bool {
	if addr = addr.Unmap(); addr.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(c.TrustedProxy, func(v string) bool {
		p, err := prefix(v)
		return err == nil && p.Contains(addr)
	})
}
