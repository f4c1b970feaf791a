package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/owner"
	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/spf13/pflag"
)

// Bounds of settings.
const (
	minInterval    = 10 * time.Millisecond
	maxInterval    = time.Hour
	maxTargetLimit = 4096
)

// settings are the flags as they were given.
type settings struct {
	engine, advertise, listen, stateDir string
	planes                              []string
	interval, timeout, staleAfter       time.Duration
	models, labels                      []string
	role, zone                          string
	maxRunning                          int64
	engineToken, engineCA, token, ca    string
	maxTargets                          int
	unknown                             string
	pushTargets                         []string
	logLevel, logFormat                 string
}

func (s *settings) register(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&s.engine, "engine", "", "base URL of the engine to sample; required")
	fs.StringVar(&s.advertise, "advertise", "", "base URL of the engine as routers know it (default: that of --engine)")
	fs.StringArrayVar(&s.planes, "plane", nil, "base URL of a plane's ingest listener to register at; repeatable")
	fs.StringVar(&s.listen, "listen", "127.0.0.1:7410", "address to listen on for HTTP")
	fs.DurationVar(&s.interval, "interval", time.Second, "wanted time between reports to planes, 10ms to 1h")
	fs.StringArrayVar(&s.models, "model", nil, "served model; repeatable (default: those that the engine names)")
	fs.StringVar(&s.role, "role", "", "plain, prefill or decode (default: the one that the engine names)")
	fs.StringVar(&s.zone, "zone", "", "zone of the engine")
	fs.StringArrayVar(&s.labels, "label", nil, "label of the engine at planes, NAME=VALUE; repeatable")
	fs.Int64Var(&s.maxRunning, "max-running", 0, "most requests that a rank runs at once, where the engine does not say it; 0 for unknown")
	fs.StringVar(&s.engineToken, "engine-token-file", "", "file with the bearer token for the engine")
	fs.StringVar(&s.engineCA, "engine-ca", "", "PEM file with the CAs of the engine (default: those of the system)")
	fs.StringVar(&s.token, "token-file", "", "file with the bearer token for the planes")
	fs.StringVar(&s.ca, "ca", "", "PEM file with the CAs of the planes (default: those of the system)")
	fs.DurationVar(&s.timeout, "sample-timeout", time.Second, "bound of each request to the engine")
	fs.DurationVar(&s.staleAfter, "stale-after", 3*time.Second, "age at which a sample stops being healthy")
	fs.StringVar(&s.stateDir, "state-dir", "", "folder for the private one with the lock and the socket (default: $XDG_RUNTIME_DIR, or that of temporary files)")
	fs.IntVar(&s.maxTargets, "max-targets", push.DefaultMaxTargets, "most routers that are reported to at once")
	fs.StringVar(&s.unknown, "push-unknown", "refuse", "what routers get where the engine does not tell a field: refuse (no reports), or zero")
	fs.StringSliceVar(&s.pushTargets, "push-targets", nil, "CIDRs of routers that others may name as targets (default: none but the caller itself)")
	fs.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&s.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
}

// config are the settings, checked.
type config struct {
	settings
	target           registry.Target
	advertised       registry.WorkerSpec
	origin           string
	tls              *tls.Config
	allowed          []netip.Prefix
	level            slog.Level
	listensElsewhere bool
}

// check reads the settings. The error names the flag.
func (s *settings) check() (*config, error) {
	c := &config{settings: *s}
	for _, step := range []func() error{
		c.checkEngine, c.checkAdvertise, c.checkPlanes, c.checkTimes, c.checkCredentials, c.checkPush, c.checkListen, c.checkLog,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// parseURL reads a base URL.
func parseURL(flag, url string) (registry.WorkerSpec, error) {
	if strings.Contains(url, ",") || !strings.Contains(url, "://") {
		return registry.WorkerSpec{}, fmt.Errorf("--%s: want http://HOST:PORT or https://HOST:PORT", flag)
	}
	spec, err := registry.ParseWorkerFlag(url)
	if err != nil {
		return spec, fmt.Errorf("--%s: %w", flag, err)
	}
	return spec, nil
}

func (c *config) checkEngine() error {
	if c.engine == "" {
		return errors.New("--engine: the URL of the engine is missing")
	}
	spec, err := parseURL("engine", c.engine)
	if err != nil {
		return err
	}
	if c.maxRunning < 0 {
		return errors.New("--max-running: want 0 or more")
	}
	c.target = registry.Target{
		ID: spec.ID, URL: spec.URL, Origin: spec.Origin, Interval: c.interval,
		MaxRunning: c.maxRunning, TokenFile: c.engineToken, CAFile: c.engineCA,
	}
	return nil
}

// checkAdvertise reads what planes and routers are told, by the rules of
// --worker of the plane.
func (c *config) checkAdvertise() error {
	if c.advertise == "" {
		c.advertise = c.engine
	}
	if _, err := parseURL("advertise", c.advertise); err != nil {
		return err
	}
	value := c.advertise
	add := func(flag, key string, texts ...string) error {
		for _, t := range texts {
			if strings.Contains(t, ",") {
				return fmt.Errorf("--%s: %q has a comma", flag, t)
			}
			if _, err := registry.ParseWorkerFlag(c.advertise + "," + key + t); err != nil {
				return fmt.Errorf("--%s: %w", flag, err)
			}
			value += "," + key + t
		}
		return nil
	}
	err := errors.Join(
		add("model", "model=", c.models...), add("label", "label.", c.labels...),
		add("role", "role=", given(c.role)...), add("zone", "zone=", given(c.zone)...),
	)
	if err != nil {
		return err
	}
	if c.advertised, err = registry.ParseWorkerFlag(value); err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(c.advertised.URL, "://")
	c.origin = strings.ToLower(scheme) + "://" + c.advertised.Origin
	return nil
}

// checkPlanes refuses a plane that is named twice: it would take the second
// reporter for another one of the same engine.
func (c *config) checkPlanes() error {
	seen := make(map[string]string, len(c.planes))
	for _, address := range c.planes {
		key := planeKey(address)
		if before, ok := seen[key]; ok {
			return fmt.Errorf("--plane: %q and %q are one plane; name it once", before, address)
		}
		seen[key] = address
	}
	return nil
}

// planeKey returns the address of a plane in one spelling.
func planeKey(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	scheme, port := strings.ToLower(u.Scheme), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	return scheme + "://" + owner.SameHost(net.JoinHostPort(host, port)) + strings.TrimRight(u.Path, "/")
}

// given returns a list of a text; none for an empty one.
func given(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

func (c *config) checkTimes() error {
	switch {
	case c.interval < minInterval || c.interval > maxInterval:
		return fmt.Errorf("--interval: %s is not within %s to %s", c.interval, minInterval, maxInterval)
	case c.timeout < minInterval || c.timeout > maxInterval:
		return fmt.Errorf("--sample-timeout: %s is not within %s to %s", c.timeout, minInterval, maxInterval)
	case c.staleAfter < minInterval || c.staleAfter > maxInterval:
		return fmt.Errorf("--stale-after: %s is not within %s to %s", c.staleAfter, minInterval, maxInterval)
	}
	return nil
}

func (c *config) checkCredentials() error {
	for flag, file := range map[string]string{"engine-token-file": c.engineToken, "token-file": c.token} {
		if _, err := egress.ReadToken(file); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	if _, err := egress.ReadRoots(c.engineCA); err != nil {
		return fmt.Errorf("--engine-ca: %w", err)
	}
	roots, err := egress.ReadRoots(c.ca)
	if err != nil {
		return fmt.Errorf("--ca: %w", err)
	}
	if roots != nil {
		c.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return nil
}

func (c *config) checkPush() error {
	if c.maxTargets < 1 || c.maxTargets > maxTargetLimit {
		return fmt.Errorf("--max-targets: %d is not within 1 to %d", c.maxTargets, maxTargetLimit)
	}
	if !slices.Contains([]string{"refuse", "zero"}, c.unknown) {
		return fmt.Errorf("--push-unknown: %q is not one of refuse, zero", c.unknown)
	}
	for _, text := range c.pushTargets {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--push-targets: %q is not a CIDR such as 10.0.0.0/8", text)
		}
		c.allowed = append(c.allowed, p.Masked())
	}
	return nil
}

func (c *config) checkListen() error {
	host, port, err := net.SplitHostPort(c.listen)
	if err != nil {
		return fmt.Errorf("--listen: %q is not HOST:PORT", c.listen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--listen: %q is not a port", port)
	}
	ip, err := netip.ParseAddr(host)
	c.listensElsewhere = host != "localhost" && (err != nil || !ip.IsLoopback())
	if c.stateDir == "" {
		c.stateDir = os.Getenv("XDG_RUNTIME_DIR")
	}
	if c.stateDir == "" {
		c.stateDir = os.TempDir()
	}
	return nil
}

func (c *config) checkLog() error {
	if err := c.level.UnmarshalText([]byte(c.logLevel)); err != nil {
		return fmt.Errorf("--log-level: %q is not one of debug, info, warn, error", c.logLevel)
	}
	if !slices.Contains([]string{"text", "json", "auto"}, c.logFormat) {
		return fmt.Errorf("--log-format: %q is not one of text, json, auto", c.logFormat)
	}
	return nil
}
