package probe

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

func TestServerInfo(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want registry.Facts
	}{
		"prefill":           {`{"served_model_name":"m","disaggregation_mode":"prefill"}`, registry.Facts{Models: []string{"m"}, Role: store.RolePrefill}},
		"decode":            {`{"served_model_name":"m","disaggregation_mode":"decode"}`, registry.Facts{Models: []string{"m"}, Role: store.RoleDecode}},
		"null":              {`{"served_model_name":"m","disaggregation_mode":null}`, registry.Facts{Models: []string{"m"}, Role: store.RoleRegular}},
		"unknown mode":      {`{"served_model_name":"m","disaggregation_mode":"encode"}`, registry.Facts{Models: []string{"m"}}},
		"no mode":           {`{"served_model_name":"m"}`, registry.Facts{Models: []string{"m"}}},
		"path":              {`{"served_model_name":null,"model_path":"/models/m/"}`, registry.Facts{Models: []string{"/models/m"}}},
		"bug 35: no name":   {`{"served_model_name":"undefined","model_path":""}`, registry.Facts{}},
		"odd types":         {`{"served_model_name":{"a":1},"model_path":"m","dp_size":"two","version":7}`, registry.Facts{Models: []string{"m"}}},
		"sizes":             {`{"model_path":"m","dp_size":-1}`, registry.Facts{Models: []string{"m"}}},
		"huge sizes":        {`{"model_path":"m","dp_size":1e9}`, registry.Facts{Models: []string{"m"}}},
		"one rank":          {`{"model_path":"m","dp_size":1,"max_total_num_tokens":500}`, registry.Facts{Models: []string{"m"}, DPSize: 1, CapacityTokens: 500}},
		"of all ranks":      {`{"model_path":"m","dp_size":2,"max_total_num_tokens":500,"max_running_requests":9}`, registry.Facts{Models: []string{"m"}, DPSize: 2}},
		"ranks differ":      {`{"model_path":"m","internal_states":[{"effective_max_running_requests_per_dp":5},{"effective_max_running_requests_per_dp":6}]}`, registry.Facts{Models: []string{"m"}}},
		"capacities differ": {`{"model_path":"m","internal_states":[{"memory_usage":{"token_capacity":5}},{"memory_usage":{"token_capacity":6}}]}`, registry.Facts{Models: []string{"m"}}},
		"a terminal":        {`{"model_path":"m","version":"1\u001b[31m"}`, registry.Facts{Models: []string{"m"}}},
		"long name":         {`{"model_path":"` + strings.Repeat("m", 257) + `"}`, registry.Facts{}},
		"a name of two":     {`{"served_model_name":["b","a","a"]}`, registry.Facts{Models: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Family = "sglang"
			if got, ok := parseServerInfo([]byte(c.body)); !ok || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, ok, c.want)
			}
		})
	}
}

func TestOtherDocuments(t *testing.T) {
	for _, body := range []string{"", "{", "[]", "null", "7", `"x"`, "{}", `{"data":null}`, `{"vllm_config":"x"}`, "<html>"} {
		for i, parse := range parsers {
			if f, ok := parse([]byte(body)); ok {
				t.Errorf("parser %d takes %q for %+v", i, body, f)
			}
		}
	}
	if f, ok := parseModels([]byte(`{"data":[]}`)); !ok || !reflect.DeepEqual(f, registry.Facts{}) {
		t.Errorf("an empty list: %+v, %v", f, ok)
	}
	if f, _ := parseProps([]byte(`{"total_slots":2,"model_alias":"a","model_path":"/p"}`)); !slices.Equal(f.Models, []string{"a"}) {
		t.Errorf("an alias: %+v", f)
	}
	many := `{"data":[` + strings.Repeat(`{"id":"m"},`, 1000) + `{"id":"last"}]}`
	if f, _ := parseModels([]byte(many)); !slices.Equal(f.Models, []string{"m"}) {
		t.Errorf("many models: %q", f.Models)
	}
}

// TestModelsAreBounded lists more models than are kept.
func TestModelsAreBounded(t *testing.T) {
	var names, items []string
	for i := range maxModels + 9 {
		names = append(names, fmt.Sprintf(`"m%03d"`, i))
		items = append(items, fmt.Sprintf(`{"id":"m%03d"}`, i))
	}
	listed, _ := parseModels([]byte(`{"data":[` + strings.Join(items, ",") + `]}`))
	served, _ := parseServerInfo([]byte(`{"served_model_name":[` + strings.Join(names, ",") + `]}`))
	if len(listed.Models) != maxModels || len(served.Models) != maxModels {
		t.Errorf("%d and %d models, want %d", len(listed.Models), len(served.Models), maxModels)
	}
}

// TestOutsideServerInfo reads documents as engines sent them.
func TestOutsideServerInfo(t *testing.T) {
	dir := os.Getenv("LOADPLANE_EXTRA_INPUTS")
	if dir == "" {
		t.Skip("LOADPLANE_EXTRA_INPUTS names no folder with inputs")
	}
	file, err := os.Open(filepath.Join(dir, "sglang_server_info_worker_variants.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var roles []store.Role
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f, ok := parseServerInfo(lines.Bytes())
		if !ok || !slices.Equal(f.Models, []string{"m"}) {
			t.Errorf("%s: got %+v, %v", lines.Text(), f, ok)
		}
		roles = append(roles, f.Role)
	}
	if want := []store.Role{store.RolePrefill, store.RolePrefill, store.RoleDecode}; !slices.Equal(roles, want) {
		t.Errorf("roles %v, want %v", roles, want)
	}
}

var parsers = []func([]byte) (registry.Facts, bool){parseServerInfo, parseModels, parseVersion, parseInfo, parseProps}

func FuzzDocuments(f *testing.F) {
	for _, seed := range []string{serverInfo, vllmModels, tgiInfo, llamaProps, llamaModels, `{"version":"1"}`, `{"data":[{"id":["a"]}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range parsers {
			facts, ok := parse(body)
			if !ok && !reflect.DeepEqual(facts, registry.Facts{}) {
				t.Fatalf("refused, and facts %+v", facts)
			}
			wellFormed(t, facts)
		}
	})
}

// wellFormed checks the bounds of facts.
func wellFormed(t *testing.T, f registry.Facts) {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if !slices.IsSorted(f.Models) || len(slices.Compact(slices.Clone(f.Models))) != len(f.Models) || len(f.Models) > maxModels {
		t.Fatalf("models %q", f.Models)
	}
	for _, text := range append([]string{f.Version}, f.Models...) {
		if len(text) > ingest.MaxModelBytes || strings.ContainsFunc(text, odd) || text != strings.TrimSpace(text) {
			t.Fatalf("text %q", text)
		}
	}
	if slices.Contains(f.Models, "") || slices.Contains(f.Models, "undefined") {
		t.Fatalf("models %q", f.Models)
	}
	if f.DPSize < 0 || f.DPSize > ingest.HardMaxRanks || f.CapacityTokens < 0 || f.CapacityTokens > ingest.MaxCount || f.MaxRunning < 0 || f.MaxRunning > maxRunning {
		t.Fatalf("numbers %+v", f)
	}
}
