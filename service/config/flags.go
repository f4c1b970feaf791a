package config

import "github.com/spf13/pflag"

// FileFlag is the name of the flag that names the YAML file. It and its
// environment variable are the only settings without a key in the file.
const FileFlag = "config"

// RegisterFlags adds a flag for every key of Config, and --config, to fs. The
// defaults shown are those of Default.
func RegisterFlags(fs *pflag.FlagSet) {
	fs.String(FileFlag, "", "YAML configuration file")
	listenFlags(fs)
	engineFlags(fs)
	discoveryFlags(fs)
	timeFlags(fs)
	securityFlags(fs)
	limitFlags(fs)
	d := Default()
	fs.String("log-level", d.LogLevel, "debug, info, warn or error")
	fs.String("log-format", d.LogFormat, "auto (text on a terminal, else JSON), json or text")
}

func listenFlags(fs *pflag.FlagSet) {
	d := Default()
	fs.String("api-listen", d.APIListen, "host:port of the API; port 0 takes a free one")
	fs.String("ingest-listen", d.IngestListen, "host:port that engines report to; port 0 takes a free one")
	fs.String("ops-listen", d.OpsListen, "host:port of /metrics, /livez and /readyz; port 0 takes a free one")
	fs.String("scaler-listen", d.ScalerListen, "host:port that KEDA asks as an external scaler, such as 127.0.0.1:7403; port 0 takes a free one")
}

func engineFlags(fs *pflag.FlagSet) {
	d := Default()
	fs.StringArray("worker", d.Worker, "engine as URL[,role=prefill][,model=NAME][,zone=NAME][,dialect=push]; repeatable")
	fs.String("workers-file", d.WorkersFile, "YAML worker list, read again when it changes")
	fs.String("identity", d.Identity, "what a report stream is bound by: peer (origin and address) or origin")
	fs.String("report-address", d.ReportAddress, "IP address told to engines; default: the local address of the registering connection")
	fs.Int("reporter-port", d.ReporterPort, "port of the engines' load reporters where neither discovery nor the engine names one; 0 for none")
	fs.String("registration", d.Registration, "who may register itself on ingest: open (for an engine on its own address), known (for listed workers) or off")
	fs.String("engine-token-file", d.EngineTokenFile, "file with the bearer token for engines")
	fs.String("engine-ca", d.EngineCA, "PEM file with the CAs of engines")
}

func discoveryFlags(fs *pflag.FlagSet) {
	d := Default()
	fs.StringArray("dns", d.DNS, "engines by DNS as NAME:PORT[,key=value...] or srv:NAME[,key=value...], with the keys of --worker; repeatable")
	fs.StringSlice("dns-server", d.DNSServer, "host:port of DNS servers; default: those of the system")
	fs.Duration("dns-min-ttl", d.DNSMinTTL, "shortest time until a name is asked for again, 1s to 1h")
	fs.Duration("dns-max-ttl", d.DNSMaxTTL, "longest time until a name is asked for again, at most 24h")
	fs.Bool("kubernetes", d.Kubernetes, "find engines in Kubernetes, by --kubernetes-services or --kubernetes-selector")
	fs.String("kubeconfig", d.Kubeconfig, "file that says how to reach the API server; default: the service account of this Pod")
	fs.StringSlice("kubernetes-namespaces", d.KubernetesNamespaces, "namespaces that are read; default: that of this Pod or of --kubeconfig")
	fs.StringSlice("kubernetes-services", d.KubernetesServices, "Services whose endpoints are engines")
	fs.String("kubernetes-selector", d.KubernetesSelector, "label selector of the Pods that are engines")
	fs.String("kubernetes-port", string(d.KubernetesPort), "name or number of the engines' port; default: the only one that is declared")
	fs.String("kubernetes-scheme", d.KubernetesScheme, "http or https")
	fs.String("admin-socket", d.AdminSocket, "path of the Unix socket by which workers are added, removed and drained")
	fs.StringSlice("egress-allow", d.EgressAllow,
		"addresses and CIDRs, such as 127.0.0.0/8, to which engines of DNS and Kubernetes may lead although they are refused otherwise")
}

func timeFlags(fs *pflag.FlagSet) {
	d := Default()
	fs.Duration("report-interval", d.ReportInterval, "interval at which engines report, 10ms to 1m")
	fs.Duration("stale-after", d.StaleAfter, "age at which a report stops being fresh, at least 3 report intervals")
	fs.Duration("lease", d.Lease, "how long an engine reports without a renewal, at least 4 report intervals")
	fs.Duration("registration-timeout", d.RegistrationTimeout, "bound of one registration call, 100ms to 30s")
	fs.Duration("poll-timeout", d.PollTimeout, "bound of one request to an engine that is read over HTTP, 100ms to 30s")
	fs.Duration("settle", d.Settle, "how long a commit waits for more input, 1ms to 1s")
	fs.Duration("heartbeat", d.Heartbeat, "longest silence on a watch, 100ms to 1m; at most a third of --stale-after is used")
	fs.Duration("write-timeout", d.WriteTimeout, "bound of one send to a watcher, 100ms to 1m")
	fs.Duration("drain-timeout", d.DrainTimeout, "bound of the shutdown, 500ms to 5m")
}

func securityFlags(fs *pflag.FlagSet) {
	d := Default()
	fs.String("api-token-file", d.APITokenFile, "file with the bearer token that clients must send")
	fs.String("client-ca", d.ClientCA, "PEM file with the CAs of client certificates")
	fs.String("tls-cert", d.TLSCert, "PEM file with the certificate chain of the listeners")
	fs.String("tls-key", d.TLSKey, "PEM file with the key of --tls-cert")
	fs.StringSlice("insecure-allow-plaintext", d.InsecureAllowPlaintext,
		"listeners (api,ingest,ops,scaler) that serve plaintext and may do so beyond loopback")
}

func limitFlags(fs *pflag.FlagSet) {
	d := Default()
	fs.Int("max-workers", d.MaxWorkers, "most workers, 1 to 100000")
	fs.Int("max-ranks", d.MaxRanks, "most ranks of a report, 1 to 4096")
	fs.Int("max-leases-per-address", d.MaxLeasesPerAddress, "most workers that one address registers and nothing else lists, 1 to 100000")
	fs.Int("max-reports-per-second", d.MaxReportsPerSecond, "most reports of registered reporters, by the intervals they are granted, 10 to 1000000")
	fs.Int("max-watchers", d.MaxWatchers, "most watches, 1 to 100000")
	fs.Int("max-connections", d.MaxConnections, "most connections of each listener, 1 to 1000000")
	fs.Int("max-connections-per-address", d.MaxConnectionsPerAddress, "most connections of each listener from one address, 1 to 1000000; not for loopback and --trusted-proxy")
	fs.StringSlice("trusted-proxy", d.TrustedProxy, "addresses and CIDRs that the limits per address and of new streams do not hold for")
	fs.Int("max-streams-per-connection", d.MaxStreamsPerConnection, "most watches or report streams of one connection, 1 to 999")
	fs.Int("metrics-workers", d.MetricsWorkers, "most workers with series of their own, and of their ranks, on /metrics, up to 1000; 0 for none")
	fs.Int("memory-limit-mib", d.MemoryLimitMiB, "soft memory limit in MiB, from 64; 0 leaves GOMEMLIMIT alone")
}
