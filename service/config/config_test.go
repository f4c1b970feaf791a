package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func parseFlags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	RegisterFlags(fs)
	fs.Int("of-another-command", 0, "not a setting")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadConfigPrecedence(t *testing.T) {
	tests := []struct {
		name, file string
		env, flags []string
		want       func(*Config)
	}{
		{name: "defaults", want: func(*Config) {}},
		{
			name: "file over defaults", file: "lease: 20s\nmax_ranks: 7\nworker: [http://a:1, 'http://b:1,role=decode']\ninsecure_allow_plaintext: [api]\n",
			want: func(c *Config) {
				c.Lease, c.MaxRanks = 20*time.Second, 7
				c.Worker = []string{"http://a:1", "http://b:1,role=decode"}
				c.InsecureAllowPlaintext = []string{"api"}
			},
		},
		{
			name: "environment over file", file: "lease: 20s\nmax_ranks: 7\nidentity: origin\n",
			env:  []string{"LOADPLANE_LEASE=30s", "LOADPLANE_MAX_RANKS=8"},
			want: func(c *Config) { c.Lease, c.MaxRanks, c.Identity = 30*time.Second, 8, "origin" },
		},
		{
			name: "flags over environment", file: "lease: 20s\n",
			env:   []string{"LOADPLANE_LEASE=30s", "LOADPLANE_SETTLE=2ms"},
			flags: []string{"--lease=40s"},
			want:  func(c *Config) { c.Lease, c.Settle = 40*time.Second, 2*time.Millisecond },
		},
		{
			name: "a flag given with its default still wins", env: []string{"LOADPLANE_LEASE=30s"}, flags: []string{"--lease=15s"},
			want: func(*Config) {},
		},
		{
			name: "a shorter list replaces a longer one", file: "worker: [http://a:1, http://b:1, http://c:1]\n",
			env:  []string{"LOADPLANE_WORKER=http://d:1 http://e:1,role=prefill"},
			want: func(c *Config) { c.Worker = []string{"http://d:1", "http://e:1,role=prefill"} },
		},
		{
			name: "repeated flags keep commas", flags: []string{"--worker=http://a:1,role=prefill", "--worker=http://b:1", "--insecure-allow-plaintext=api,ops"},
			want: func(c *Config) {
				c.Worker = []string{"http://a:1,role=prefill", "http://b:1"}
				c.InsecureAllowPlaintext = []string{"api", "ops"}
			},
		},
		{
			name: "lists in the environment", env: []string{"LOADPLANE_INSECURE_ALLOW_PLAINTEXT=api,ingest"},
			want: func(c *Config) { c.InsecureAllowPlaintext = []string{"api", "ingest"} },
		},
		{
			name: "discovery in the file",
			file: "dns: ['engines.example:30000,role=decode', 'srv:_sglang._tcp.example']\ndns_max_ttl: 30s\nkubernetes: true\n" +
				"kubernetes_services: [sglang]\nkubernetes_port: 30000\nadmin_socket: /run/a\negress_allow: [127.0.0.0/8]\n",
			want: func(c *Config) {
				c.DNS, c.DNSMaxTTL = []string{"engines.example:30000,role=decode", "srv:_sglang._tcp.example"}, 30*time.Second
				c.Kubernetes, c.KubernetesServices, c.KubernetesPort = true, []string{"sglang"}, "30000"
				c.AdminSocket, c.EgressAllow = "/run/a", []string{"127.0.0.0/8"}
			},
		},
		{
			name: "discovery in the environment",
			env: []string{
				"LOADPLANE_DNS=a.example:1,role=decode,zone=z srv:b.example", "LOADPLANE_DNS_SERVER=10.0.0.1:53,10.0.0.2:53",
				"LOADPLANE_KUBERNETES=true", "LOADPLANE_KUBERNETES_NAMESPACES=a,b", "LOADPLANE_KUBERNETES_SERVICES=c,d",
				"LOADPLANE_KUBERNETES_SELECTOR=app in (x,y)", "LOADPLANE_KUBERNETES_PORT=http", "LOADPLANE_EGRESS_ALLOW=::1,10.0.0.0/8",
			},
			want: func(c *Config) {
				c.DNS, c.DNSServer = []string{"a.example:1,role=decode,zone=z", "srv:b.example"}, []string{"10.0.0.1:53", "10.0.0.2:53"}
				c.Kubernetes, c.KubernetesNamespaces, c.KubernetesServices = true, []string{"a", "b"}, []string{"c", "d"}
				c.KubernetesSelector, c.KubernetesPort, c.EgressAllow = "app in (x,y)", "http", []string{"::1", "10.0.0.0/8"}
			},
		},
		{
			name: "discovery by flags", env: []string{"LOADPLANE_KUBERNETES=true"},
			flags: []string{"--kubernetes=false", "--dns=a.example:1,role=decode", "--dns=srv:b.example", "--kubernetes-port=30000", "--kubeconfig=/k"},
			want: func(c *Config) {
				c.DNS, c.KubernetesPort, c.Kubeconfig = []string{"a.example:1,role=decode", "srv:b.example"}, "30000", "/k"
			},
		},
		{
			name: "variables of tests are ignored", env: []string{"LOADPLANE_EXTRA_INPUTS=/x", "LOADPLANE_MUTATIONS=5", "OTHER=1"},
			want: func(*Config) {},
		},
		{name: "an empty file", file: "\n", want: func(*Config) {}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			flags := test.flags
			if test.file != "" {
				flags = append(flags, "--config", writeFile(t, "c.yaml", test.file))
			}
			got, err := Load(parseFlags(t, flags...), test.env)
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			test.want(&want)
			want.Worker, want.InsecureAllowPlaintext = slices.Clip(want.Worker), slices.Clip(want.InsecureAllowPlaintext)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestConfigPathFromEnvironment(t *testing.T) {
	inEnv := "LOADPLANE_CONFIG=" + writeFile(t, "a.yaml", "lease: 21s\n")
	got, err := Load(nil, []string{inEnv})
	if err != nil || got.Lease != 21*time.Second {
		t.Fatalf("lease %v, error %v", got.Lease, err)
	}
	got, err = Load(parseFlags(t, "--config", writeFile(t, "b.yaml", "lease: 22s\n")), []string{inEnv})
	if err != nil || got.Lease != 22*time.Second {
		t.Fatalf("with the flag: lease %v, error %v", got.Lease, err)
	}
}

func TestLoadConfigStrict(t *testing.T) {
	tests := []struct {
		name, file string
		env        []string
		want       string
	}{
		{"unknown key", "leese: 5s\n", nil, `unknown setting "leese"`},
		{"key in the spelling of a flag", "report-interval: 5s\n", nil, `unknown setting "report-interval"`},
		{"key in capitals", "Lease: 5s\n", nil, `unknown setting "Lease"`},
		{"nested key", "lease: {seconds: 5}\n", nil, "lease: want a duration"},
		{"config in the file", "config: x\n", nil, `unknown setting "config"`},
		{"text for a yes or no", "kubernetes: maybe\n", nil, "kubernetes: want true or false"},
		{"number for a yes or no", "kubernetes: 1\n", nil, "kubernetes: want true or false"},
		{"bad yes or no in a variable", "", []string{"LOADPLANE_KUBERNETES=1"}, "LOADPLANE_KUBERNETES: want true or false"},
		{"list for a port", "kubernetes_port: [1]\n", nil, "kubernetes_port: want the name or the number of a port"},
		{"fraction for a port", "kubernetes_port: 1.5\n", nil, "kubernetes_port: want the name or the number of a port"},
		{"text for a list of names", "dns: a.example:1\n", nil, "dns: want a list"},
		{"no value", "lease:\n", nil, "lease has no value"},
		{"duration without a unit", "lease: 15\n", nil, "lease: want a duration"},
		{"duration that is none", "lease: soon\n", nil, "lease: want a duration"},
		{"fraction", "max_ranks: 1.5\n", nil, "max_ranks: want a whole number"},
		{"text for a number", "max_ranks: many\n", nil, "max_ranks: want a whole number"},
		{"number for a text", "identity: 5\n", nil, "identity: want a text"},
		{"text for a list", "worker: http://a:1\n", nil, "worker: want a list"},
		{"list of numbers", "worker: [1]\n", nil, "worker: want a list"},
		{"list for a text", "identity: [peer]\n", nil, "identity: want a text"},
		{"duplicate key", "lease: 15s\nlease: 16s\n", nil, "without duplicates"},
		{"no mapping", "- lease\n", nil, "not a mapping"},
		{"two documents", "lease: 15s\n---\nlease: 16s\n", nil, "more than one document"},
		{"no YAML", "lease: [\n", nil, "yaml"},
		{"unknown variable", "", []string{"LOADPLANE_LEESE=5s"}, `unknown setting "LOADPLANE_LEESE"`},
		{"variable in small letters", "", []string{"LOADPLANE_lease=5s"}, `unknown setting "LOADPLANE_lease"`},
		{"prefix alone", "", []string{"LOADPLANE_=1"}, `unknown setting "LOADPLANE_"`},
		{"bad variable", "", []string{"LOADPLANE_MAX_RANKS=x"}, "LOADPLANE_MAX_RANKS: want a whole number"},
		{"empty variable", "", []string{"LOADPLANE_LEASE="}, "LOADPLANE_LEASE: want a duration"},
		{"like a test variable", "", []string{"LOADPLANE_MUTATION=1"}, `unknown setting "LOADPLANE_MUTATION"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var flags []string
			if test.file != "" {
				flags = []string{"--config", writeFile(t, "c.yaml", test.file)}
			}
			got, err := Load(parseFlags(t, flags...), test.env)
			var config *Error
			if !errors.As(err, &config) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			if !reflect.DeepEqual(got, Config{}) {
				t.Error("a configuration came with the error")
			}
		})
	}
}

func TestLoadConfigFileMissing(t *testing.T) {
	_, err := Load(parseFlags(t, "--config=/does/not/exist"), nil)
	if !errors.Is(err, os.ErrNotExist) && !strings.Contains(err.Error(), "no such file") {
		t.Fatalf("error %v", err)
	}
}

func TestFlagsAndKeysAgree(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	RegisterFlags(fs)
	var flags []string
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != FileFlag {
			flags = append(flags, strings.ReplaceAll(f.Name, "-", "_"))
		}
		if f.Usage == "" {
			t.Errorf("--%s has no usage text", f.Name)
		}
	})
	keys := configKeys()
	slices.Sort(flags)
	slices.Sort(keys)
	if !slices.Equal(flags, keys) {
		t.Errorf("flags %v\nkeys  %v", flags, keys)
	}
}

func TestFlagDefaultsAreThoseInForce(t *testing.T) {
	// Every flag that is marked as given carries its own default.
	fs := parseFlags(t)
	fs.VisitAll(func(f *pflag.Flag) { f.Changed = f.Name != FileFlag })
	got, err := Load(fs, nil)
	if err != nil {
		t.Fatal(err)
	}
	emptyToNil(&got)
	if want := Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// emptyToNil makes empty lists nil.
func emptyToNil(c *Config) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice && f.Len() == 0 {
			f.SetZero()
		}
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   string // Empty: valid.
	}{
		{"defaults", func(*Config) {}, ""},
		{"interval too short", func(c *Config) { c.ReportInterval = 9 * time.Millisecond }, "report_interval: 9ms is not in 10ms to 1m0s"},
		{"interval too long", func(c *Config) {
			c.ReportInterval = time.Minute + 1
			c.StaleAfter = 5 * time.Minute
			c.Lease = 5 * time.Minute
		}, "report_interval"},
		{"stale after 3 intervals", func(c *Config) { c.ReportInterval = time.Second; c.StaleAfter = 3 * time.Second }, ""},
		{"stale before 3 intervals", func(c *Config) { c.StaleAfter, c.Heartbeat = 3*time.Second-1, 500*time.Millisecond }, "stale_after"},
		{"stale too long", func(c *Config) { c.StaleAfter = 10*time.Minute + 1 }, "stale_after"},
		{"lease of 4 intervals", func(c *Config) { c.Lease = 4 * time.Second }, ""},
		{"lease below 4 intervals", func(c *Config) { c.Lease = 4*time.Second - 1 }, "lease: 3.999999999s is not in 4s to 1h0m0s"},
		{"lease too long", func(c *Config) { c.Lease = time.Hour + 1 }, "lease"},
		{"poll too short", func(c *Config) { c.PollTimeout = 99 * time.Millisecond }, "poll_timeout"},
		{"registration too short", func(c *Config) { c.RegistrationTimeout = 99 * time.Millisecond }, "registration_timeout"},
		{"settle of 1ms", func(c *Config) { c.Settle = time.Millisecond }, ""},
		{"settle of 1s", func(c *Config) { c.Settle = time.Second }, ""},
		{"settle too short", func(c *Config) { c.Settle = time.Millisecond - 1 }, "settle: 999.999µs is not in 1ms to 1s"},
		{"settle too long", func(c *Config) { c.Settle = time.Second + 1 }, "settle"},
		{"heartbeat too short", func(c *Config) { c.Heartbeat = 99 * time.Millisecond }, "heartbeat"},
		{"heartbeat too long", func(c *Config) { c.Heartbeat = time.Minute + 1 }, "heartbeat: 1m0.000000001s is not in 100ms to 1m0s"},
		{"heartbeat above a third of stale_after", func(c *Config) { c.StaleAfter, c.ReportInterval = 1500*time.Millisecond, 500*time.Millisecond }, ""},
		{"no connection per address", func(c *Config) { c.MaxConnectionsPerAddress = 0 }, "max_connections_per_address"},
		{"proxy by name", func(c *Config) { c.TrustedProxy = []string{"proxy"} }, "trusted_proxy"},
		{"proxies", func(c *Config) { c.TrustedProxy = []string{"10.0.0.1", "fd00::/8"} }, ""},
		{"egress by name", func(c *Config) { c.EgressAllow = []string{"engine"} }, `egress_allow: "engine" is not an IP address or a CIDR`},
		{"egress", func(c *Config) { c.EgressAllow = []string{"127.0.0.1", "fd00::/8"} }, ""},
		{"TTL too short", func(c *Config) { c.DNSMinTTL = 999 * time.Millisecond }, "dns_min_ttl: 999ms is not in 1s to 1h0m0s"},
		{"TTLs out of order", func(c *Config) { c.DNSMinTTL, c.DNSMaxTTL = 2*time.Minute, time.Minute }, "dns_min_ttl: 2m0s is above dns_max_ttl, 1m0s"},
		{"TTL too long", func(c *Config) { c.DNSMaxTTL = 25 * time.Hour }, "dns_max_ttl: 25h0m0s is not in 1s to 24h0m0s"},
		{"DNS server", func(c *Config) { c.DNS, c.DNSServer = []string{"a:1"}, []string{"10.0.0.1:53", "[fd00::1]:53"} }, ""},
		{"DNS server without a port", func(c *Config) { c.DNS, c.DNSServer = []string{"a:1"}, []string{"10.0.0.1"} }, `dns_server: "10.0.0.1" is not host:port`},
		{"DNS server without names", func(c *Config) { c.DNSServer = []string{"10.0.0.1:53"} }, "dns_server: there is no name to ask for; give --dns"},
		{"Kubernetes by Services", func(c *Config) { c.Kubernetes, c.KubernetesServices = true, []string{"a"} }, ""},
		{"Kubernetes by labels", func(c *Config) { c.Kubernetes, c.KubernetesSelector = true, "app=a" }, ""},
		{"Kubernetes by nothing", func(c *Config) { c.Kubernetes = true }, "kubernetes: nothing says which Pods are engines; give --kubernetes-services or"},
		{"Kubernetes by both", func(c *Config) {
			c.Kubernetes, c.KubernetesServices, c.KubernetesSelector = true, []string{"a"}, "app=a"
		}, "kubernetes: kubernetes_services and kubernetes_selector exclude each other"},
		{"a selector without Kubernetes", func(c *Config) { c.KubernetesSelector = "app=a" }, "kubernetes_selector: it says nothing without kubernetes; give --kubernetes"},
		{"Services without Kubernetes", func(c *Config) { c.KubernetesServices = []string{"a"} }, "kubernetes_services: it says nothing"},
		{"namespaces without Kubernetes", func(c *Config) { c.KubernetesNamespaces = []string{"a"} }, "kubernetes_namespaces: it says nothing"},
		{"a port without Kubernetes", func(c *Config) { c.KubernetesPort = "http" }, "kubernetes_port: it says nothing"},
		{"a kubeconfig without Kubernetes", func(c *Config) { c.Kubeconfig = "/k" }, "kubeconfig: it says nothing"},
		{"Kubernetes scheme", func(c *Config) { c.KubernetesScheme = "ftp" }, `kubernetes_scheme: "ftp" is not one of http, https`},
		{"admin socket", func(c *Config) { c.AdminSocket = strings.Repeat("a", 103) }, ""},
		{"admin socket with a long path", func(c *Config) { c.AdminSocket = strings.Repeat("a", 104) }, "admin_socket: the path has 104 bytes, more than 103"},
		{"write timeout", func(c *Config) { c.WriteTimeout = 0 }, "write_timeout"},
		{"drain timeout", func(c *Config) { c.DrainTimeout = 499 * time.Millisecond }, "drain_timeout"},
		{"no workers", func(c *Config) { c.MaxWorkers = 0 }, "max_workers: 0 is not in 1 to 100000"},
		{"ranks above the hard limit", func(c *Config) { c.MaxRanks = 4097 }, "max_ranks"},
		{"watchers", func(c *Config) { c.MaxWatchers = -1 }, "max_watchers"},
		{"connections", func(c *Config) { c.MaxConnections = 0 }, "max_connections"},
		{"streams", func(c *Config) { c.MaxStreamsPerConnection = 1000 }, "max_streams_per_connection"},
		{"workers with series", func(c *Config) { c.MetricsWorkers = 1000 }, ""},
		{"too many workers with series", func(c *Config) { c.MetricsWorkers = 1001 }, "metrics_workers: 1001 is not in 0 to 1000"},
		{"memory too small", func(c *Config) { c.MemoryLimitMiB = 63 }, "memory_limit_mib"},
		{"memory", func(c *Config) { c.MemoryLimitMiB = 64 }, ""},
		{"identity", func(c *Config) { c.Identity = "none" }, `identity: "none" is not one of peer, origin`},
		{"registration", func(c *Config) { c.Registration = "all" }, `registration: "all" is not one of open, known, off`},
		{"registration of known workers", func(c *Config) { c.Registration = RegistrationKnown }, ""},
		{"reporter port", func(c *Config) { c.ReporterPort = 31000 }, ""},
		{"reporter port too high", func(c *Config) { c.ReporterPort = 65536 }, "reporter_port: 65536 is not in 0 to 65535"},
		{"leases of an address", func(c *Config) { c.MaxLeasesPerAddress = 0 }, "max_leases_per_address: 0 is not in 1 to 100000"},
		{"reports per second", func(c *Config) { c.MaxReportsPerSecond = 9 }, "max_reports_per_second: 9 is not in 10 to 1000000"},
		{"log level", func(c *Config) { c.LogLevel = "loud" }, "log_level"},
		{"log format", func(c *Config) { c.LogFormat = "xml" }, "log_format"},
		{"report address", func(c *Config) { c.ReportAddress = "10.0.0.1" }, ""},
		{"report address IPv6", func(c *Config) { c.ReportAddress = "fd00::1" }, ""},
		{"report address name", func(c *Config) { c.ReportAddress = "plane.local" }, "report_address"},
		{"report address with a zone", func(c *Config) { c.ReportAddress = "fe80::1%eth0" }, "report_address"},
		{"report address unspecified", func(c *Config) { c.ReportAddress = "0.0.0.0" }, "report_address"},
		{"report address multicast", func(c *Config) { c.ReportAddress = "224.0.0.1" }, "report_address"},
		{"certificate without a key", func(c *Config) { c.TLSCert = "c" }, "tls_cert"},
		{"key without a certificate", func(c *Config) { c.TLSKey = "k" }, "tls_cert"},
		{"client CA without TLS", func(c *Config) { c.ClientCA = "ca" }, "client_ca"},
		{"unknown listener", func(c *Config) { c.InsecureAllowPlaintext = []string{"admin"} }, "insecure_allow_plaintext"},
		{"no port", func(c *Config) { c.APIListen = "127.0.0.1" }, "api_listen"},
		{"port out of range", func(c *Config) { c.IngestListen = "127.0.0.1:70000" }, "ingest_listen"},
		{"named port", func(c *Config) { c.OpsListen = "127.0.0.1:http" }, "ops_listen"},
		{"one address twice", func(c *Config) { c.OpsListen = c.APIListen }, "ops_listen"},
		{"the scaler's address twice", func(c *Config) { c.ScalerListen = c.OpsListen }, "scaler_listen"},
		{"scaler without a port", func(c *Config) { c.ScalerListen = "127.0.0.1" }, "scaler_listen"},
		{"scaler insecure and off", func(c *Config) { c.InsecureAllowPlaintext = []string{"scaler"} }, ""},
		{"port 0 twice", func(c *Config) { c.APIListen, c.OpsListen = "127.0.0.1:0", "127.0.0.1:0" }, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := Default()
			test.change(&c)
			err := c.Validate()
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var config *Error
			if !errors.As(err, &config) || len(config.Problems) != 1 || !strings.HasPrefix(config.Problems[0], test.want) {
				t.Fatalf("error %q, want one that begins with %q", err, test.want)
			}
		})
	}
}

func TestValidateNamesEveryProblem(t *testing.T) {
	c := Default()
	c.Lease, c.Settle, c.Identity = 0, 0, ""
	var config *Error
	if err := c.Validate(); !errors.As(err, &config) || len(config.Problems) != 3 {
		t.Fatalf("error %v", err)
	}
}

func TestListenerMatrix(t *testing.T) {
	hosts := []struct {
		host     string
		loopback bool
	}{
		{"127.0.0.1", true}, {"127.8.8.8", true}, {"[::1]", true}, {"localhost", true}, {"[::ffff:127.0.0.1]", true},
		{"0.0.0.0", false}, {"[::]", false}, {"", false}, {"10.0.0.5", false}, {"plane.example", false}, {"[fe80::1%eth0]", false},
	}
	auths := []struct {
		name string
		set  func(*Config)
		any  bool
	}{
		{"none", func(*Config) {}, false},
		{"token", func(c *Config) { c.APITokenFile = "t" }, true},
		{"mTLS", func(c *Config) { c.ClientCA = "ca" }, true},
	}
	for _, l := range Listeners() {
		for _, h := range hosts {
			for _, a := range auths {
				for _, tls := range []bool{false, true} {
					for _, insecure := range []bool{false, true} {
						c := Default()
						*map[Listener]*string{API: &c.APIListen, Ingest: &c.IngestListen, Ops: &c.OpsListen, Scaler: &c.ScalerListen}[l] = h.host + ":7999"
						a.set(&c)
						if tls {
							c.TLSCert, c.TLSKey = "c", "k"
						}
						if insecure {
							c.InsecureAllowPlaintext = []string{string(l)}
						}
						if c.ClientCA != "" && !tls {
							continue // Refused for another reason.
						}
						want := h.loopback || insecure || tls && a.any
						err := c.Validate()
						if (err == nil) != want {
							t.Errorf("%s on %q, auth %s, tls %v, insecure %v: error %v, want allowed %v", l, h.host, a.name, tls, insecure, err, want)
						}
						if err != nil && (!strings.HasPrefix(err.Error(), string(l)+"_listen: ") || !strings.Contains(err.Error(), "--insecure-allow-plaintext="+string(l))) {
							t.Errorf("%s: the error does not say what to do: %v", l, err)
						}
						if got := c.TLS(l); got != (tls && !insecure) {
							t.Errorf("%s: TLS %v with tls %v, insecure %v", l, got, tls, insecure)
						}
					}
				}
			}
		}
	}
}

func TestEveryFieldIsDocumented(t *testing.T) {
	source, err := os.ReadFile("config.go")
	if err != nil {
		t.Fatal(err)
	}
	for f := range reflect.TypeFor[Config]().Fields() {
		if !strings.Contains(string(source), "\t// "+f.Name+" ") {
			t.Errorf("%s has no doc comment", f.Name)
		}
	}
}

func FuzzLoadConfigFile(f *testing.F) {
	f.Add([]byte("lease: 15s\n"))
	f.Add([]byte("worker: [a, 1, {b: c}]\nmax_ranks: 1e3\n"))
	f.Add([]byte("&a [*a]"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(nil, []string{"LOADPLANE_CONFIG=" + path})
		if err == nil {
			_ = cfg.Validate()
			return
		}
		var config *Error
		if !errors.As(err, &config) || len(config.Problems) == 0 {
			t.Fatalf("error %v is no Error", err)
		}
	})
}

func TestExempt(t *testing.T) {
	c := Config{TrustedProxy: []string{"10.0.0.1", "fd00::/8"}}
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "::ffff:127.0.0.5": true, "10.0.0.1": true, "::ffff:10.0.0.1": true,
		"10.0.0.2": false, "fd12::1": true, "fe80::1": false,
	} {
		if got := c.Exempt(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
}

// What Kubernetes sets in a container beside a Service named loadplane is no
// setting of ours. A setting that looks like it is one by its value.
func TestServiceLinksAreIgnored(t *testing.T) {
	for _, name := range []string{
		"LOADPLANE_PORT", "LOADPLANE_SERVICE_HOST", "LOADPLANE_SERVICE_PORT", "LOADPLANE_SERVICE_PORT_GRPC_API",
		"LOADPLANE_PORT_7400_TCP", "LOADPLANE_PORT_7400_TCP_ADDR", "LOADPLANE_API_SERVICE_HOST", "LOADPLANE_API_PORT",
	} {
		if _, err := Load(nil, []string{name + "=tcp://10.0.0.1:7400"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load(nil, []string{"LOADPLANE_PORTS=1"}); err == nil {
		t.Error("LOADPLANE_PORTS is taken for a service link")
	}
	got, err := Load(nil, []string{"LOADPLANE_REPORTER_PORT=tcp://10.0.0.1:7400"})
	if err != nil || got.ReporterPort != 0 {
		t.Errorf("beside a Service named loadplane-reporter: port %d, error %v", got.ReporterPort, err)
	}
	if got, err = Load(nil, []string{"LOADPLANE_KUBERNETES_PORT=tcp://10.0.0.1:7400"}); err != nil || got.KubernetesPort != "" {
		t.Errorf("beside a Service named loadplane-kubernetes: port %q, error %v", got.KubernetesPort, err)
	}
	if got, err = Load(nil, []string{"LOADPLANE_REPORTER_PORT=31000"}); err != nil || got.ReporterPort != 31000 {
		t.Errorf("port %d, error %v", got.ReporterPort, err)
	}
	for _, key := range configKeys() {
		field := configField(&Config{}, key)
		if serviceLink.MatchString(envName(key)) && field.Kind() != reflect.Int && field.Type() != reflect.TypeFor[Port]() {
			t.Errorf("%s looks like a service link, and its value may", key)
		}
	}
}

func TestDiscovers(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a list": func(c *Config) { c.Worker = []string{"http://a:1"} }, "a file": func(c *Config) { c.WorkersFile = "w" },
		"DNS": func(c *Config) { c.DNS = []string{"a:1"} }, "Kubernetes": func(c *Config) { c.Kubernetes = true },
		"operators": func(c *Config) { c.AdminSocket = "s" }, "registration": func(c *Config) { c.Registration = RegistrationKnown },
	} {
		c := Default()
		c.Registration = RegistrationOff
		if c.Discovers() {
			t.Error("there is a source of workers without any")
		}
		if change(&c); !c.Discovers() {
			t.Errorf("%s is no source of workers", name)
		}
	}
}

func TestEgressPrefixes(t *testing.T) {
	c := Config{EgressAllow: []string{"127.0.0.0/8", "::ffff:10.0.0.1", "fd00::1"}}
	want := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::1/128")}
	if got := c.EgressPrefixes(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
