package document

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// hostile has what a terminal obeys, what changes the direction of text, and
// what YAML reads as something else.
const hostile = "evil\x1b[31m\n\u202e \U000e0001 'x': \"yes\" # no\u2028ü\x7f\u0085"

func message(text string) *pb.ExplainWorkerResponse {
	return &pb.ExplainWorkerResponse{
		Summary: text, ServerClockMs: 1 << 63, Checks: []*pb.Check{{Name: "yes", Value: "12", Verdict: pb.Verdict_VERDICT_OK}},
		Worker: &pb.WorkerInfo{Worker: &pb.Worker{WorkerId: "a", Labels: map[string]string{text: "null"}}},
	}
}

func written(t *testing.T, m proto.Message, format string) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, m, format); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// back reads a document as a message.
func back(t *testing.T, doc, format string) *pb.ExplainWorkerResponse {
	t.Helper()
	if format == "yaml" {
		var v any
		if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		doc = string(b)
	}
	m := new(pb.ExplainWorkerResponse)
	if err := protojson.Unmarshal([]byte(doc), m); err != nil {
		t.Fatalf("%v in\n%s", err, doc)
	}
	return m
}

// TestNothingIsLostOrObeyed reads back what was written, in which there is
// nothing but printable characters.
func TestNothingIsLostOrObeyed(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		for _, text := range []string{hostile, "plain", "", "null", "0x1F", "soft\u00adhyphen", strings.Repeat("long ", 200) + hostile} {
			m := message(text)
			doc := written(t, m, format)
			if got := back(t, doc, format); !proto.Equal(got, m) {
				t.Errorf("%s of %q became\n%s", format, text, doc)
			}
			if i := strings.IndexFunc(doc, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%s has %q:\n%q", format, doc[i], doc)
			}
		}
	}
}

func TestLineIsOne(t *testing.T) {
	line, err := Line(message(hostile))
	if err != nil || bytes.ContainsAny(line, "\n\x1b\u202e") || !bytes.Contains(line, []byte(`\udb40\udc01`)) {
		t.Errorf("%v:\n%q", err, line)
	}
	if !bytes.Contains(line, []byte(`"serverClockMs":"9223372036854775808"`)) {
		t.Errorf("a number of 64 bits is not a string:\n%s", line)
	}
}

func TestYAMLKeepsTheOrder(t *testing.T) {
	doc := written(t, message("x"), "yaml")
	if a, b, c := strings.Index(doc, "worker:"), strings.Index(doc, "checks:"), strings.Index(doc, "summary:"); a < 0 || a > b || b > c {
		t.Errorf("the order is lost:\n%s", doc)
	}
}

// What is not set is written too, and whole numbers as such.
func TestDocumentsAreWhole(t *testing.T) {
	m := &pb.ExplainWorkerResponse{Diagnostics: []*pb.Diagnostic{{Count: 4_294_967_295}}}
	for format, want := range map[string][]string{
		"json": {`"summary": ""`, `"count": 4294967295`}, "yaml": {`summary: ""`, "count: 4294967295\n"},
	} {
		for _, part := range want {
			if doc := written(t, m, format); !strings.Contains(doc, part) {
				t.Errorf("%s has no %s:\n%s", format, part, doc)
			}
		}
	}
}

// FuzzYAML reads back whatever text a name has.
func FuzzYAML(f *testing.F) {
	f.Add(hostile)
	f.Add("- a\n- b")
	f.Add("\ufeff")
	f.Fuzz(func(t *testing.T, text string) {
		m := message(strings.ToValidUTF8(text, "?"))
		if got := back(t, written(t, m, "yaml"), "yaml"); !proto.Equal(got, m) {
			t.Errorf("%q is lost", text)
		}
	})
}
