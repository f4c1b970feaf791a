package probe

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// Bounds of what is kept of a document.
const (
	maxVersionBytes = 128
	maxModels       = 64
	maxRunning      = 1 << 31
	maxHostBytes    = 253
	maxTopicBytes   = 64
	maxPort         = 1<<16 - 1
)

// parseServerInfo reads SGLang's /server_info: its arguments, what its
// scheduler says of itself, and the state of each DP rank. ok says that it is
// such a document. Engines of other kinds have a page of that name too.
//
// The argument max_running_requests is not read: it is what was asked for, of
// all ranks together under DP attention and of each otherwise. A rank's state
// has the number in force, under effective_max_running_requests_per_dp.
func parseServerInfo(body []byte) (f registry.Facts, ok bool) {
	var d struct {
		Model     json.RawMessage `json:"served_model_name"`
		Path      json.RawMessage `json:"model_path"`
		Mode      json.RawMessage `json:"disaggregation_mode"`
		DPSize    json.RawMessage `json:"dp_size"`
		Version   json.RawMessage `json:"version"`
		States    json.RawMessage `json:"internal_states"`
		Scheduler json.RawMessage `json:"max_total_num_tokens"`
		Reporter  json.RawMessage `json:"load_reporter_port"`
		KVEvents  json.RawMessage `json:"kv_events"`
	}
	if json.Unmarshal(body, &d) != nil || d.Model == nil && d.Path == nil && d.Mode == nil {
		return f, false
	}
	f.Family = string(sample.SGLang)
	f.Version = version(d.Version)
	f.Role = role(d.Mode)
	f.DPSize = int(whole(d.DPSize, ingest.HardMaxRanks))
	if f.Models = models(d.Model); f.Models == nil {
		f.Models = models(d.Path)
	}
	f.ReporterPort = int(whole(d.Reporter, maxPort))
	f.LoadStat = loadStat(d.KVEvents, d.DPSize)
	states(d.States, &f)
	if f.CapacityTokens == 0 && f.DPSize == 1 {
		f.CapacityTokens = whole(d.Scheduler, ingest.MaxCount)
	}
	return f, true
}

// loadStat reads where the load of each rank is published. The keys are there
// only while it is. What is not as it has to be leaves all of it unknown.
func loadStat(raw, dpSize json.RawMessage) (l registry.LoadStat) {
	var d struct {
		Host   json.RawMessage `json:"endpoint_host"`
		Port   json.RawMessage `json:"load_endpoint_port_base"`
		Topic  json.RawMessage `json:"load_topic"`
		DPSize json.RawMessage `json:"dp_size"`
	}
	if json.Unmarshal(raw, &d) != nil {
		return l
	}
	if null(d.DPSize) {
		d.DPSize = dpSize
	}
	l.Port, l.Ranks = int(whole(d.Port, maxPort)), 1
	if !null(d.DPSize) {
		l.Ranks = int(whole(d.DPSize, ingest.HardMaxRanks))
	}
	var hostOK, topicOK bool
	l.Host, hostOK = endpointHost(d.Host)
	l.Topic, topicOK = loadTopic(d.Topic)
	if !hostOK || !topicOK || l.Port == 0 || l.Ranks == 0 || l.Port+l.Ranks-1 > maxPort {
		return registry.LoadStat{}
	}
	return l
}

// loadTopic reads the topic of load; empty for the usual one, which an engine
// need not name: the port alone says that it publishes.
func loadTopic(raw json.RawMessage) (topic string, ok bool) {
	if null(raw) {
		return "", true
	}
	topic = text(raw, maxTopicBytes)
	return topic, topic != ""
}

// null says that a value is missing or null.
func null(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// endpointHost reads the host of an endpoint; empty for one that stands for
// every address of the engine's host.
func endpointHost(raw json.RawMessage) (host string, ok bool) {
	if null(raw) {
		return "", true
	}
	switch host = text(raw, maxHostBytes); host {
	case "*", "0.0.0.0", "::", "[::]":
		return "", true
	}
	return host, host != "" || string(raw) == `""`
}

// role reads a disaggregation mode. SGLang writes "null" as a word where it is
// off; a mode that is not known, or missing, leaves the role unknown.
func role(raw json.RawMessage) store.Role {
	switch string(raw) {
	case `"prefill"`:
		return store.RolePrefill
	case `"decode"`:
		return store.RoleDecode
	case `null`, `"null"`:
		return store.RoleRegular
	}
	return store.RoleUnspecified
}

// states reads what the ranks say of themselves, where all say the same: they
// are not numbered, and facts are of each rank.
func states(raw json.RawMessage, f *registry.Facts) {
	var list []struct {
		MaxRunning json.RawMessage `json:"effective_max_running_requests_per_dp"`
		Memory     struct {
			Capacity json.RawMessage `json:"token_capacity"`
		} `json:"memory_usage"`
	}
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return
	}
	f.MaxRunning = whole(list[0].MaxRunning, maxRunning)
	f.CapacityTokens = whole(list[0].Memory.Capacity, ingest.MaxCount)
	for _, s := range list[1:] {
		if whole(s.MaxRunning, maxRunning) != f.MaxRunning {
			f.MaxRunning = 0
		}
		if whole(s.Memory.Capacity, ingest.MaxCount) != f.CapacityTokens {
			f.CapacityTokens = 0
		}
	}
}

// owners are the words of /v1/models that name an engine.
var owners = map[string]sample.Family{
	"sglang": sample.SGLang, "vllm": sample.VLLM, "tensorrt_llm": sample.TensorRTLLM, "llamacpp": sample.LlamaCPP,
}

// parseModels reads /v1/models, OpenAI's list of models. Its max_model_len is
// the longest request, which is no capacity.
func parseModels(body []byte) (f registry.Facts, ok bool) {
	var d struct {
		Data []struct {
			ID    json.RawMessage `json:"id"`
			Owner json.RawMessage `json:"owned_by"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &d) != nil || d.Data == nil {
		return f, false
	}
	for _, m := range d.Data[:min(len(d.Data), maxModels)] {
		if name := model(m.ID); name != "" {
			f.Models = append(f.Models, name)
		}
		if family := owners[text(m.Owner, maxVersionBytes)]; family != "" {
			f.Family = string(family)
		}
	}
	slices.Sort(f.Models)
	f.Models = slices.Compact(f.Models)
	return f, true
}

// parseVersion reads /version of vLLM and TensorRT-LLM.
func parseVersion(body []byte) (f registry.Facts, ok bool) {
	var d struct {
		Version json.RawMessage `json:"version"`
	}
	if json.Unmarshal(body, &d) != nil || d.Version == nil {
		return f, false
	}
	f.Version = version(d.Version)
	return f, true
}

// parseInfo reads TGI's /info. The most tokens of a batch are its capacity,
// and the most concurrent requests stand for those that it runs.
func parseInfo(body []byte) (f registry.Facts, ok bool) {
	var d struct {
		Model    json.RawMessage `json:"model_id"`
		Version  json.RawMessage `json:"version"`
		Capacity json.RawMessage `json:"max_batch_total_tokens"`
		Requests json.RawMessage `json:"max_concurrent_requests"`
	}
	if json.Unmarshal(body, &d) != nil || d.Model == nil || d.Requests == nil {
		return f, false
	}
	return registry.Facts{
		Family: string(sample.TGI), Version: version(d.Version), Models: models(d.Model), DPSize: 1,
		CapacityTokens: whole(d.Capacity, ingest.MaxCount), MaxRunning: whole(d.Requests, maxRunning),
	}, true
}

// parseProps reads llama.cpp's /props. Each slot runs one request.
func parseProps(body []byte) (f registry.Facts, ok bool) {
	var d struct {
		Slots json.RawMessage `json:"total_slots"`
		Alias json.RawMessage `json:"model_alias"`
		Path  json.RawMessage `json:"model_path"`
		Build json.RawMessage `json:"build_info"`
	}
	if json.Unmarshal(body, &d) != nil || d.Slots == nil {
		return f, false
	}
	f = registry.Facts{
		Family: string(sample.LlamaCPP), Version: version(d.Build), DPSize: 1, MaxRunning: whole(d.Slots, maxRunning),
	}
	if f.Models = models(d.Alias); f.Models == nil {
		f.Models = models(d.Path)
	}
	return f, true
}

// models reads a name or a list of names.
func models(raw json.RawMessage) (names []string) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		list = []json.RawMessage{raw}
	}
	for _, item := range list[:min(len(list), maxModels)] {
		if name := model(item); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// model reads a name. A path loses its last slash; the name of engines that
// were given none is as good as empty.
func model(raw json.RawMessage) string {
	name := strings.TrimSpace(strings.TrimRight(text(raw, ingest.MaxModelBytes), "/ "))
	if name == "undefined" {
		return ""
	}
	return name
}

func version(raw json.RawMessage) string { return text(raw, maxVersionBytes) }

// text reads a string of printable characters; empty for anything else.
func text(raw json.RawMessage, most int) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	s = strings.TrimSpace(s)
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if len(s) > most || strings.ContainsFunc(s, odd) {
		return ""
	}
	return s
}

// whole reads a whole number from 1 to most; 0 for anything else.
func whole(raw json.RawMessage, most int64) int64 {
	var v int64
	if json.Unmarshal(raw, &v) != nil || v < 1 || v > most {
		return 0
	}
	return v
}
