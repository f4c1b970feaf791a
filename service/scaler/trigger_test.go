package scaler

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/store"
	"go.yaml.in/yaml/v3"
)

// broken is a listener that fails at once.
type broken struct{ net.Listener }

func (broken) Accept() (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
func (broken) Close() error              { return nil }
func (broken) Addr() net.Addr            { return &net.TCPAddr{} }

func TestParse(t *testing.T) {
	full := map[string]string{
		"scalerAddress": "plane:7403", "enableTLS": "true", "unsafeSsl": "false",
		"model": "m", "role": "prefill", "metric": "token_usage", "target": "0.8", "activation": "2", "minCoverage": "0.9", "unknown": "active",
	}
	got, refused := parse(full)
	if refused != nil {
		t.Fatal(refused.text)
	}
	if got.pool.Model != "m" || got.pool.Role != store.RolePrefill || got.measure != store.SumWeightedTokenUsage || got.target != 0.8 ||
		got.activation != 2 || got.minCoverage != 0.9 || !got.wakes {
		t.Errorf("got %+v", got)
	}
	least, refused := parse(map[string]string{"metric": "waiting_requests", "target": "1"})
	if refused != nil {
		t.Fatal(refused.text)
	}
	if least.pool.Model != "" || least.pool.Role != store.RoleRegular || least.activation != 0 || least.minCoverage != defaultMinCoverage || least.wakes {
		t.Errorf("defaults %+v", least)
	}
}

// The longest name and the least and largest numbers are taken.
func TestParseTakesTheEdges(t *testing.T) {
	for _, tt := range []struct{ key, value string }{
		{"model", strings.Repeat("m", maxModelBytes)}, {"target", "0.001"}, {"target", "1e12"}, {"activation", "0"}, {"minCoverage", "0.01"}, {"minCoverage", "1"},
	} {
		if _, refused := parse(of("total_requests", tt.key, tt.value)); refused != nil {
			t.Error(refused.text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ key, value string }{
		{"Model", "m"}, {"modelFromEnv", "m"}, {"threshold", "5"}, {"", ""}, {"scaleraddress", "x"},
		{"model", strings.Repeat("m", maxModelBytes+1)},
		{"role", "regular"}, {"role", ""}, {"metric", "free_tokens"}, {"metric", "Waiting_requests"},
		{"target", "0"}, {"target", "-1"}, {"target", "NaN"}, {"target", "Inf"}, {"target", "1e13"}, {"target", "5%"}, {"target", ""}, {"target", "0.0001"},
		{"target", "0x1p3"}, {"target", "1_000"}, {"target", strings.Repeat("9", 50_000)},
		{"role", strings.Repeat("\u202e", 10_000)}, {"metric", strings.Repeat("m", 50_000)},
		{"activation", "-1"}, {"activation", "NaN"}, {"activation", "few"},
		{"minCoverage", "0"}, {"minCoverage", "1.1"}, {"minCoverage", "50"},
		{"unknown", "zero"}, {"unknown", ""},
	} {
		t.Run(tt.key+"="+tt.value[:min(len(tt.value), 20)], func(t *testing.T) {
			_, refused := parse(of("total_requests", tt.key, tt.value))
			if refused == nil {
				t.Fatal("it was taken")
			}
			if !strings.Contains(refused.text, tt.key) {
				t.Errorf("the answer does not name the key: %s", refused.text)
			}
			// It goes into a trailer, which gRPC clients take up to 8 KiB of.
			if len(refused.text) > 1024 {
				t.Errorf("the answer has %d bytes", len(refused.text))
			}
		})
	}
}

func TestAnswersToLongKeysAreShort(t *testing.T) {
	_, refused := parse(of("total_requests", strings.Repeat("\x1b\u202e", 9_000), "x"))
	if refused == nil || refused.reason != ReasonUnknownKey || len(refused.text) > 1024 {
		t.Errorf("%+.1500v", refused)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("model", "m", "0.5")
	f.Add("role", "decode", "1e300")
	f.Add("minCoverage", "0x1p-2", "+1_0")
	f.Add("unknown", "\xff\n", "nan")
	f.Fuzz(func(t *testing.T, key, value, target string) {
		got, refused := parse(of("queue_pressure", key, value, "target", target))
		if refused != nil {
			if _, ok := refusalCodes[refused.reason]; !ok || strings.ContainsAny(refused.text, "\n\r") {
				t.Errorf("refused by %q: %q", refused.reason, refused.text)
			}
			return
		}
		for _, v := range []float64{got.target, got.activation, got.minCoverage} {
			if math.IsNaN(v) || v < 0 || v > maxNumber {
				t.Errorf("took %+v", got)
			}
		}
		if s := got.spec().GetMetricSpecs()[0]; s.GetTargetSize() < 1 || s.GetTargetSizeFloat() < minTarget {
			t.Errorf("target %v", s)
		}
	})
}

func TestWhole(t *testing.T) {
	for v, want := range map[float64]int64{0: 0, 0.01: 1, 1: 1, 1.5: 2, 1e300: 1 << 62} {
		if got := whole(v); got != want {
			t.Errorf("%v: %d, want %d", v, got, want)
		}
	}
}

// scaledObject is the part of one that says what is asked here.
type scaledObject struct {
	Kind string `yaml:"kind"`
	Spec struct {
		Triggers []struct {
			Type       string            `yaml:"type"`
			MetricType string            `yaml:"metricType"`
			Metadata   map[string]string `yaml:"metadata"`
		} `yaml:"triggers"`
	} `yaml:"spec"`
}

var fenced = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every trigger of the examples is one that the server takes, with the type of
// target that fits its metric.
func TestExamplesAreTaken(t *testing.T) {
	manifest, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "keda-scaledobject.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "autoscaling.md"))
	if err != nil {
		t.Fatal(err)
	}
	texts := [][]byte{manifest}
	for _, m := range fenced.FindAllSubmatch(page, -1) {
		texts = append(texts, m[1])
	}
	types := map[string]int{}
	for _, text := range texts {
		dec := yaml.NewDecoder(bytes.NewReader(text))
		for {
			var o scaledObject
			if err := dec.Decode(&o); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("%v in:\n%s", err, text)
				}
				break
			}
			for _, tr := range o.Spec.Triggers {
				if !strings.HasPrefix(tr.Type, "external") {
					continue
				}
				types[tr.Type]++
				checkExample(t, tr.MetricType, tr.Metadata)
			}
		}
	}
	if types["external"] == 0 || types["external-push"] == 0 {
		t.Errorf("examples %v", types)
	}
}

// checkExample checks that a share of each worker is no target for a sum over
// them, and the other way round.
func checkExample(t *testing.T, metricType string, metadata map[string]string) {
	t.Helper()
	got, refused := parse(metadata)
	if refused != nil {
		t.Errorf("refused: %s", refused.text)
		return
	}
	share := got.metric == "token_usage" || got.metric == "max_rank_token_usage" || got.metric == "request_utilization" ||
		got.metric == "queue_pressure" || got.metric == "prefill_wait_seconds"
	if share != (metricType == "Value") {
		t.Errorf("%s has metricType %q", got.metric, metricType)
	}
}
