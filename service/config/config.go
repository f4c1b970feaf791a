package config

import (
	"time"
)

// Config is the whole configuration of a plane. Its keys are the same
// everywhere: report_interval in the YAML file, LOADPLANE_REPORT_INTERVAL in
// the environment and --report-interval as a flag; a later source wins over
// an earlier one in that order. It is a plain value.
type Config struct {
	// APIListen is the host:port of the API for routers and people. Port 0
	// takes a free one. Default 127.0.0.1:7400.
	APIListen string `koanf:"api_listen"`
	// IngestListen is the host:port that engines stream reports to. Port 0
	// takes a free one. Default 127.0.0.1:7401.
	IngestListen string `koanf:"ingest_listen"`
	// OpsListen is the host:port of /metrics, /livez and /readyz. Port 0 takes
	// a free one. Default 127.0.0.1:7402.
	OpsListen string `koanf:"ops_listen"`
	// ScalerListen is the host:port that autoscalers ask by KEDA's external
	// scaler interface. Port 0 takes a free one. Empty, the default, is for none.
	ScalerListen string `koanf:"scaler_listen"`

	// WorkersFile is the path of a YAML worker list, read again when it
	// changes. Empty for none, the default.
	WorkersFile string `koanf:"workers_file"`
	// Worker lists engines as URL[,role=...][,model=...] and so on. In the
	// environment they are separated by spaces. Default none.
	Worker []string `koanf:"worker"`
	// DNS lists names behind which engines are, as NAME:PORT for addresses or
	// srv:NAME for SRV records, each with [,key=value...] as in Worker. In the
	// environment they are separated by spaces. Default none.
	DNS []string `koanf:"dns"`
	// DNSServer lists host:port addresses that are asked for DNS in turn, by
	// absolute names. In the environment they are separated by commas. Empty,
	// the default, uses the servers and the search list of the system.
	DNSServer []string `koanf:"dns_server"`
	// DNSMinTTL and DNSMaxTTL bound the time until a name of DNS is asked for
	// again, whatever its time to live is: 1s to 1h, and DNSMinTTL to 24h.
	// Default 5s and 1m.
	DNSMinTTL time.Duration `koanf:"dns_min_ttl"`
	// DNSMaxTTL belongs to DNSMinTTL.
	DNSMaxTTL time.Duration `koanf:"dns_max_ttl"`
	// Kubernetes says that engines are found in Kubernetes, by
	// KubernetesServices or KubernetesSelector. Default false.
	Kubernetes bool `koanf:"kubernetes"`
	// Kubeconfig is the path of the file that says how to reach the API server.
	// Empty, the default, uses the service account of the plane's own Pod.
	Kubeconfig string `koanf:"kubeconfig"`
	// KubernetesNamespaces are those that are read. In the environment they are
	// separated by commas. Empty, the default, is that of the plane's own Pod or
	// of Kubeconfig.
	KubernetesNamespaces []string `koanf:"kubernetes_namespaces"`
	// KubernetesServices are the Services whose endpoints are workers. In the
	// environment they are separated by commas. Default none.
	KubernetesServices []string `koanf:"kubernetes_services"`
	// KubernetesSelector is the label selector of the Pods that are workers.
	// Default none.
	KubernetesSelector string `koanf:"kubernetes_selector"`
	// KubernetesPort is the name or the number of the engines' port. Empty, the
	// default, is the only one that an EndpointSlice or a Pod declares.
	KubernetesPort Port `koanf:"kubernetes_port"`
	// KubernetesScheme is http or https. Default http.
	KubernetesScheme string `koanf:"kubernetes_scheme"`
	// AdminSocket is the path of the Unix socket by which workers are added,
	// removed and drained, at most 103 bytes. Empty, the default, is for none.
	AdminSocket string `koanf:"admin_socket"`
	// EgressAllow lists addresses and CIDRs to which engines of DNS and
	// Kubernetes may lead although they are loopback, link-local or others that
	// are refused. In the environment they are separated by commas. Default
	// none.
	EgressAllow []string `koanf:"egress_allow"`

	// ReportInterval is the interval at which engines are asked to report,
	// 10ms to 1m. Default 1s.
	ReportInterval time.Duration `koanf:"report_interval"`
	// StaleAfter is the age at which a report stops being fresh: at least 3
	// report intervals, at most 10m. Default 3s.
	StaleAfter time.Duration `koanf:"stale_after"`
	// Lease is how long an engine reports without a renewal: at least 4 report
	// intervals, at most 1h. Default 15s.
	Lease time.Duration `koanf:"lease"`
	// RegistrationTimeout bounds one registration call, 100ms to 30s. Default
	// 2s.
	RegistrationTimeout time.Duration `koanf:"registration_timeout"`
	// PollTimeout bounds one request to an engine that is read over HTTP, 100ms
	// to 30s. Default 2s.
	PollTimeout time.Duration `koanf:"poll_timeout"`
	// Settle is how long a commit waits for more input, 1ms to 1s. Default
	// 10ms.
	Settle time.Duration `koanf:"settle"`
	// Heartbeat is the longest silence on a watch that asks for none, 100ms to
	// 1m; never above a third of StaleAfter. Default 1s.
	Heartbeat time.Duration `koanf:"heartbeat"`
	// WriteTimeout bounds one send to a watcher, 100ms to 1m. Default 5s.
	WriteTimeout time.Duration `koanf:"write_timeout"`
	// DrainTimeout bounds the shutdown, 500ms to 5m. Requests to the API
	// that are open after half of it are cut. Default 10s.
	DrainTimeout time.Duration `koanf:"drain_timeout"`

	// Identity says what a report stream is bound by: "peer" (origin and peer
	// address) or "origin" (origin alone, for engines behind address
	// translation). Default peer.
	Identity string `koanf:"identity"`
	// ReportAddress is the IP address told to engines as the place to report
	// to. Empty, the default, tells each the local address of the connection
	// that registered it.
	ReportAddress string `koanf:"report_address"`
	// ReporterPort is the port on which the load reporters of engines are
	// dialled where neither discovery nor the engine names one, 1 to 65535. 0,
	// the default, is for none.
	ReporterPort int `koanf:"reporter_port"`
	// Registration says who may register itself on ingest: "open" (every peer,
	// for an engine on its own address), "known" (for workers that discovery
	// lists) or "off". Default open.
	Registration string `koanf:"registration"`
	// EngineTokenFile holds the bearer token for calls to engines. Empty for
	// none, the default.
	EngineTokenFile string `koanf:"engine_token_file"`
	// EngineCA holds the PEM certificates that engines are verified by. Empty,
	// the default, uses those of the system.
	EngineCA string `koanf:"engine_ca"`

	// APITokenFile holds the bearer token that clients must send. It binds the
	// API and ops listeners, and ingest where that is TLS. It is read again
	// when it changes. Empty for none, the default.
	APITokenFile string `koanf:"api_token_file"`
	// ClientCA holds the PEM certificates that client certificates are
	// verified by, on the listeners that are TLS. It is read again when it
	// changes. Empty for none, the default.
	ClientCA string `koanf:"client_ca"`
	// TLSCert and TLSKey are the PEM certificate chain and key of all
	// listeners that InsecureAllowPlaintext does not name. They are read again
	// when they change. The key must not be open to others (mode 0640 at
	// most). Empty for plaintext, the default.
	TLSCert string `koanf:"tls_cert"`
	// TLSKey belongs to TLSCert.
	TLSKey string `koanf:"tls_key"`
	// InsecureAllowPlaintext lists listeners (api, ingest, ops, scaler) that serve
	// plaintext and may do so beyond loopback. Engines that push know no TLS:
	// their ingest needs it. In the environment they are separated by commas.
	// Default none.
	InsecureAllowPlaintext []string `koanf:"insecure_allow_plaintext"`

	// MaxWorkers bounds the workers, 1 to 100000. Default 10000.
	MaxWorkers int `koanf:"max_workers"`
	// MaxRanks bounds the ranks of a report, 1 to 4096. Default 512.
	MaxRanks int `koanf:"max_ranks"`
	// MaxLeasesPerAddress bounds the workers that one address registers and
	// nothing else lists, 1 to 100000; exempt addresses are not bound. Default
	// 64.
	MaxLeasesPerAddress int `koanf:"max_leases_per_address"`
	// MaxReportsPerSecond bounds the reports of all reporters that registered
	// themselves, by the intervals that they are granted, 10 to 1000000.
	// Default 20000.
	MaxReportsPerSecond int `koanf:"max_reports_per_second"`
	// MaxWatchers bounds the watches, 1 to 100000. Default 2000.
	MaxWatchers int `koanf:"max_watchers"`
	// MaxConnections bounds the connections of each listener, 1 to 1000000.
	// Default 16384.
	MaxConnections int `koanf:"max_connections"`
	// MaxConnectionsPerAddress bounds the connections of each listener from one
	// remote address, 1 to 1000000. It does not hold for loopback and for
	// TrustedProxy. Default 64.
	MaxConnectionsPerAddress int `koanf:"max_connections_per_address"`
	// TrustedProxy lists addresses and CIDRs of proxies that speak for many
	// clients: the limits per address and of new streams do not hold for them.
	// In the environment they are separated by commas. Default none.
	TrustedProxy []string `koanf:"trusted_proxy"`
	// MaxStreamsPerConnection bounds the watches and the report streams of one
	// connection, 1 to 999. Default 256.
	MaxStreamsPerConnection int `koanf:"max_streams_per_connection"`
	// MetricsWorkers bounds the workers with series of their own on /metrics, and
	// of their ranks, 0 to 1000. 0, the default, is for none.
	MetricsWorkers int `koanf:"metrics_workers"`
	// MemoryLimitMiB is the soft memory limit of the process in MiB, 64 to
	// 16777216. 0, the default, leaves GOMEMLIMIT alone.
	MemoryLimitMiB int `koanf:"memory_limit_mib"`

	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `koanf:"log_level"`
	// LogFormat is auto (text on a terminal, else JSON), json or text. Default
	// auto.
	LogFormat string `koanf:"log_format"`
}

// Port is the name or the number of a port. A number needs no quotes in YAML.
type Port string

// The values of Config.Identity.
const (
	IdentityPeer   = "peer"
	IdentityOrigin = "origin"
)

// The values of Config.Registration.
const (
	RegistrationOpen  = "open"
	RegistrationKnown = "known"
	RegistrationOff   = "off"
)

// Default returns the defaults that are named beside the fields.
func Default() Config {
	return Config{
		APIListen:                "127.0.0.1:7400",
		IngestListen:             "127.0.0.1:7401",
		OpsListen:                "127.0.0.1:7402",
		ReportInterval:           time.Second,
		StaleAfter:               3 * time.Second,
		Lease:                    15 * time.Second,
		RegistrationTimeout:      2 * time.Second,
		PollTimeout:              2 * time.Second,
		Settle:                   10 * time.Millisecond,
		Heartbeat:                time.Second,
		WriteTimeout:             5 * time.Second,
		DrainTimeout:             10 * time.Second,
		DNSMinTTL:                5 * time.Second,
		DNSMaxTTL:                time.Minute,
		KubernetesScheme:         "http",
		Identity:                 IdentityPeer,
		Registration:             RegistrationOpen,
		MaxWorkers:               10_000,
		MaxRanks:                 512,
		MaxLeasesPerAddress:      64,
		MaxReportsPerSecond:      20_000,
		MaxWatchers:              2_000,
		MaxConnections:           16_384,
		MaxConnectionsPerAddress: 64,
		MaxStreamsPerConnection:  256,
		LogLevel:                 "info",
		LogFormat:                "auto",
	}
}
