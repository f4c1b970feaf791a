package sim

import (
	"net"
	"strconv"

	"github.com/loadplane/loadplane/sim/reporter"
)

// serverInfo is the part of an engine's /server_info that tells what it is
// and which ways of load reporting it offers.
type serverInfo struct {
	ModelPath          string   `json:"model_path"`
	ServedModelName    string   `json:"served_model_name"`
	Host               string   `json:"host"`
	Port               int      `json:"port"`
	TPSize             int      `json:"tp_size"`
	DPSize             int      `json:"dp_size"`
	DisaggregationMode string   `json:"disaggregation_mode"`
	MaxRunningRequests int      `json:"max_running_requests"`
	MaxTotalNumTokens  int      `json:"max_total_num_tokens"`
	LoadReporterPort   *int     `json:"load_reporter_port"`
	LoadReporterZone   *string  `json:"load_reporter_zone"`
	KVEvents           kvEvents `json:"kv_events"`
	StartupTime        float64  `json:"startup_time"`
	Version            string   `json:"version"`
}

// kvEvents has no load_* keys: the engine publishes no load on a socket.
type kvEvents struct {
	Publisher    string `json:"publisher"`
	EndpointHost string `json:"endpoint_host"`
	PortBase     int    `json:"endpoint_port_base"`
	Topic        string `json:"topic"`
	BlockSize    int    `json:"block_size"`
	DPSize       int    `json:"dp_size"`
}

func (e *Engine) serverInfo() serverInfo {
	host, portText, _ := net.SplitHostPort(e.address) // an address we listened on
	port, _ := strconv.Atoi(portText)
	info := serverInfo{
		ModelPath:          "/models/" + e.info.Model,
		ServedModelName:    e.info.Model,
		Host:               host,
		Port:               port,
		TPSize:             e.opts.Ranks,
		DPSize:             e.opts.Ranks,
		DisaggregationMode: "null",
		MaxRunningRequests: reporter.MaxRunning,
		MaxTotalNumTokens:  reporter.CapacityTokens,
		KVEvents: kvEvents{
			Publisher: "zmq", EndpointHost: "*", PortBase: 5557,
			Topic: "kv-events", BlockSize: 1, DPSize: e.opts.Ranks,
		},
		StartupTime: float64(e.started.UnixMilli()) / 1e3,
		Version:     "0.5.18",
	}
	if e.info.Role != RolePlain {
		info.DisaggregationMode = string(e.info.Role)
	}
	if e.info.Zone != "" {
		info.LoadReporterZone = &e.info.Zone
	}
	return info
}
