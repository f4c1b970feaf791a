package rules

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// edge allows code in one folder to import another.
type edge struct{ from, to, why string }

// edges are all imports between packages of this module. Every one points to
// the store, so that nothing on the way of a report knows who reads it.
var edges = []edge{
	{"store/snapshot", "store", "builds views out of states of the store"},
	{"registry", "store", "lists workers and leaves admitted reports"},
	{"ingest", "store", "validated reports are values of the store"},
	{"ingest", "registry", "a refusal is the registry's, whoever refuses"},
	{"ingest/push", "ingest", "reports are validated by the rules of all dialects"},
	{"ingest/push", "registry", "binds streams and asks for admission"},
	{"ingest/push", "store", "decodes into values of the store"},
	{"registry", "registry/egress", "reads the credentials of its calls"},
	{"ingest/poll", "ingest", "readings are validated by the rules of all dialects"},
	{"ingest/poll", "ingest/poll/survey", "finds the page to read"},
	{"ingest/poll", "ingest/poll/pace", "says when to poll next"},
	{"ingest/poll/survey", "ingest/poll/sample", "reads the pages of engines"},
	{"ingest/poll/survey", "registry", "asks targets of the registry"},
	{"ingest/poll/survey", "registry/egress", "fetches the pages"},
	{"ingest/poll/survey", "store", "words are the store's"},
	{"ingest/poll/fields", "ingest/poll/sample", "compares what was matched"},
	{"ingest/poll/fields", "store", "fields are the store's"},
	{"ingest/probe", "ingest/poll/survey", "looks for the page that polling would read"},
	{"ingest/poll", "registry", "serves workers of the registry"},
	{"ingest/poll", "registry/egress", "fetches the pages"},
	{"ingest/poll", "store", "leaves loads and words of the store"},
	{"ingest/poll/sample", "ingest", "a reading is a report of ingest"},
	{"ingest/poll/sample", "ingest/poll/promtext", "tells formats and families apart"},
	{"ingest/poll/sample", "ingest/poll/sample/cells", "computes fields from the inputs of a page"},
	{"ingest/poll/sample", "ingest/poll/sample/document", "reads JSON pages"},
	{"ingest/poll/sample", "ingest/poll/sample/series", "reads expositions"},
	{"ingest/poll/sample/series", "ingest", "limits of ranks"},
	{"ingest/poll/sample/series", "registry", "a refusal is the registry's, whoever refuses"},
	{"ingest/poll/sample/series", "store", "words and flags are the store's"},
	{"ingest/poll/sample/series", "ingest/poll/promtext", "scans expositions"},
	{"ingest/poll/sample/series", "ingest/poll/sample/cells", "fills the inputs of ranks"},
	{"ingest/poll/sample/document", "ingest", "limits of ranks"},
	{"ingest/poll/sample/document", "registry", "a refusal is the registry's, whoever refuses"},
	{"ingest/poll/sample/document", "store", "words are the store's"},
	{"ingest/poll/sample/document", "ingest/poll/sample/cells", "fills the inputs of ranks"},
	{"ingest/poll/sample/cells", "ingest", "limits of values"},
	{"ingest/poll/sample/cells", "store", "words are the store's"},
	{"ingest/probe", "ingest", "limits of texts"},
	{"client", "client/internal/clock", "maps the clock of a server"},
	{"client", "client/internal/link", "connects to planes"},
	{"client", "client/internal/retry", "says when to connect again"},
	{"client", "proto/loadplane/v1/loadplanev1connect", "opens watches"},
	{"client/balance", "client", "picks from its views"},
	{"client/balance", "client/pick", "picks"},
	{"client/balance", "client/pick/credit", "counts what was dispatched"},
	{"client/balance", "proto/loadplane/v1", "reads the workers of a view"},
	{"docs/examples/router", "client", "follows a plane"},
	{"docs/examples/router", "client/balance", "routes"},
	{"docs/examples/router", "client/pick", "names policies"},
	{"docs/examples/router", "client/pick/credit", "round robin counts as the policies do"},
	{"sim", "sim/serve", "engines answer requests"},
	{"sim/serve", "sim/face/page", "answers like the engine's own server"},
	{"sim/serve", "sim/queue", "requests wait and run in the queues"},
	{"sim/serve", "sim/reporter", "requests are those of the process"},
	{"sim/reporter", "sim/queue", "reports the load of the queues"},
	{"sim/queue", "proto/router/loadmonitor/v1", "the load is in the wire's terms"},
	{"client/metrics", "client", "shows a watcher as metrics"},
	{"client/pick", "client/pick/credit", "adds what was dispatched to what was reported"},
	{"ingest/poll/sample", "registry", "a refusal is the registry's, whoever refuses"},
	{"ingest/poll/sample", "store", "fields and flags are the store's"},
	{"ingest/probe", "ingest/poll", "tries what polling would"},
	{"ingest/probe", "ingest/poll/sample", "shows what a page says"},
	{"ingest/probe", "registry", "answers the registry's questions"},
	{"ingest/probe", "registry/egress", "asks engines"},
	{"ingest/probe", "store", "dialects and words are the store's"},
	{"service", "ingest/poll", "composition"},
	{"service", "ingest/probe", "composition"},
	{"sim", "sim/face", "each engine shows the pages of its kind"},
	{"sim/face", "sim/face/page", "writes the formats of the pages"},
	{"sim/face", "sim/reporter", "shows the load of the process"},
	{"sim/face", "proto/router/loadmonitor/v1", "the load is in the wire's terms"},
	{"cmd/loadplane", "cmd/loadplane/inspect", "prints what an engine offers"},
	{"cmd/loadplane/inspect", "ingest/probe", "prints its reports"},
	{"cmd/loadplane/inspect", "ingest/poll/sample", "names of pages and fields"},
	{"cmd/loadplane/inspect", "registry", "facts and offers are the registry's"},
	{"cmd/loadplane/inspect", "store", "fields are the store's"},
	{"api", "store", "reads values of the content"},
	{"api", "store/snapshot", "waits for views and encodes them"},
	{"api", "api/feeds", "shares the views of a filter"},
	{"api", "api/pace", "spaces the messages of a watch"},
	{"api", "api/picks", "answers picks"},
	{"api/picks", "api/query", "a bad query is the same fault everywhere"},
	{"api/picks", "client/pick", "picks by the routers' code"},
	{"api/picks", "client/pick/credit", "counts what was answered"},
	{"api/picks", "store", "values of the content"},
	{"api/picks", "store/snapshot", "picks from views"},
	{"api", "api/query", "reads what a request asks for"},
	{"api/feeds", "api/frame", "one cache of bytes for each filter"},
	{"api/feeds", "store/snapshot", "one feed for each filter"},
	{"api/feeds", "store/snapshot/filter", "finds what is open by its filter"},
	{"api/query", "proto/loadplane/v1", "reads the filters of messages"},
	{"api/query", "store", "roles are the store's"},
	{"api/query", "store/snapshot/filter", "makes filters"},
	{"store/snapshot", "store/snapshot/filter", "cuts views by filters"},
	{"store/snapshot/filter", "store", "matches workers"},
	{"api", "api/frame", "sends the shared bytes of a version"},
	{"api", "api/health", "answers health checks"},
	{"api/health", "store", "waits for the content to change"},
	{"client", "proto/loadplane/v1", "reads the plane's messages"},
	{"e2e/history", "proto/loadplane/v1", "records messages for checks after a run"},
	{"api", "api/jsonview", "writes the view as JSON"},
	{"api", "proto/loadplane/v1", "serves the plane's messages"},
	{"api/frame", "store/snapshot", "composes the bytes of a view"},
	{"api/frame", "proto/loadplane/v1", "turns shared bytes back into messages for JSON clients"},
	{"api/jsonview", "store", "reads values of the content"},
	{"api/jsonview", "store/snapshot", "reads views"},
	{"api", "proto/loadplane/v1/loadplanev1connect", "serves the plane's services"},
	{"proto/loadplane/v1/loadplanev1connect", "proto/loadplane/v1", "handlers of the messages"},
	{"sim", "sim/reporter", "each engine process has a reporter"},
	{"sim", "proto/router/loadmonitor/v1", "roles are the wire's"},
	{"sim/reporter", "proto/router/loadmonitor/v1", "simulated engines speak the engines' dialect"},
	{"service", "api", "composition"},
	{"service", "ingest", "composition"},
	{"service", "ingest/push", "composition"},
	{"service", "registry", "composition"},
	{"registry/dns", "registry", "a source of the registry, which lists workers"},
	{"registry/dns", "store", "a reason word is the store's type"},
	{"registry/kube", "registry", "a source of the registry, which lists workers"},
	{"registry/kube", "registry/kube/kubeapi", "follows the objects of the cluster"},
	{"registry/kube/kubeapi", "store", "a reason word is the store's type"},
	{"service", "registry/dns", "composition"},
	{"service", "registry/kube", "composition"},
	{"service", "service/admin", "lets operators in"},
	{"service/admin", "registry", "adds, removes and drains workers"},
	{"service/admin", "store", "shows what is listed"},
	{"cmd/loadplane/operate", "service/admin", "goes to the socket of operators"},
	{"cmd/loadplane/operate", "service/config", "the socket is a setting"},
	{"e2e/kubelist", "registry", "prints workers of the registry"},
	{"e2e/kubelist", "registry/kube", "prints what is found in a cluster"},
	{"service", "service/config", "what it runs by"},
	{"service", "service/scaler", "composition"},
	{"api", "api/explain", "explains a worker"},
	{"api", "api/page", "serves the page"},
	{"api/explain", "store", "values and words are the store's"},
	{"api/explain", "proto/loadplane/v1", "makes its checks"},
	{"cmd/loadplane", "cmd/loadplane/findings", "explains a worker"},
	{"cmd/loadplane", "cmd/loadplane/usage", "arguments and words of the command line"},
	{"cmd/loadplane", "cmd/loadplane/workerslist", "writes the list of its simulated engines"},
	{"cmd/loadplane/workerslist", "sim", "lists the engines of a fleet"},
	{"cmd/loadplane/findings", "cmd/loadplane/document", "writes JSON and YAML as other commands do"},
	{"cmd/loadplane/findings", "cmd/loadplane/remote", "reaches a running plane"},
	{"cmd/loadplane/findings", "cmd/loadplane/table", "writes tables that fit the screen"},
	{"cmd/loadplane/findings", "proto/loadplane/v1", "shows checks"},
	{"cmd/loadplane/remote", "cmd/loadplane/document", "writes JSON and YAML as other commands do"},
	{"cmd/loadplane/inspect", "cmd/loadplane/document", "writes JSON as other commands do"},
	{"cmd/loadplane/inspect", "registry/egress", "bounds the requests"},
	{"cmd/loadplane", "cmd/loadplane/top", "the live screen"},
	{"cmd/loadplane", "cmd/logqueue", "the log of serve and demo holds nothing up"},
	{"cmd/loadreporter", "cmd/logqueue", "the log holds nothing up"},
	{"cmd/loadplane/top", "client", "follows a watch"},
	{"cmd/loadplane/top", "proto/loadplane/v1", "shows messages"},
	{"cmd/loadplane/top", "cmd/loadplane/remote", "reaches a running plane"},
	{"cmd/loadplane/top", "cmd/loadplane/table", "the width of plain text"},
	{"cmd/loadplane/top", "cmd/loadplane/top/board", "the rows of the screen"},
	{"cmd/loadplane/top", "cmd/loadplane/top/paint", "fits and colours text"},
	{"cmd/loadplane/top", "cmd/loadplane/top/sheet", "the screen of one worker"},
	{"cmd/loadplane/top/board", "client", "shows the view of a watch"},
	{"cmd/loadplane/top/board", "proto/loadplane/v1", "shows messages"},
	{"cmd/loadplane/top/board", "cmd/loadplane/top/paint", "fits and colours text"},
	{"cmd/loadplane/top/sheet", "cmd/loadplane/findings", "marks verdicts as explain does"},
	{"cmd/loadplane/top/sheet", "client", "shows the view of a watch"},
	{"cmd/loadplane/top/sheet", "proto/loadplane/v1", "shows messages"},
	{"cmd/loadplane/top/sheet", "cmd/loadplane/top/board", "shows values as the rows do"},
	{"cmd/loadplane/top/sheet", "cmd/loadplane/top/paint", "fits and colours text"},
	{"cmd/loadplane/top/paint", "cmd/loadplane/remote", "shows ages and counts as other commands do"},
	{"cmd/loadplane/top/paint", "cmd/loadplane/table", "cleans text for people"},
	{"service", "store/journal", "composition"},
	{"store/journal", "store", "tells what becomes of workers"},
	{"service", "api/series", "composition"},
	{"api", "api/series", "labels of pools are made as those of workers"},
	{"api/series", "store", "shows the workers of a state"},
	{"ingest", "ingest/graceful", "ends its server"},
	{"service/scaler", "ingest/graceful", "ends its server"},
	{"service/scaler", "proto/externalscaler", "speaks KEDA's interface"},
	{"service/scaler", "store", "a reason word is the store's type"},
	{"service/scaler", "store/snapshot", "answers out of the views"},
	{"service", "service/access", "guards the listeners"},
	{"service/access", "store", "a reason word is the store's type"},
	{"service", "store", "composition"},
	{"service", "store/snapshot", "composition"},
	{"cmd/loadplane", "service", "serve and demo run the plane"},
	{"cmd/loadplane", "sim", "sim and demo run simulated engines"},
	{"cmd/loadplane", "service/config", "flags and files of serve and demo"},
	{"cmd/loadplane", "cmd/loadplane/remote", "commands that talk to a running plane"},
	{"cmd/loadplane", "cmd/loadplane/operate", "commands that change a running plane"},
	{"cmd/loadplane/operate", "cmd/loadplane/remote", "its kind of usage errors"},
	{"cmd/loadplane/operate", "cmd/loadplane/table", "cleans text for people"},
	{"cmd/loadplane/inspect", "cmd/loadplane/remote", "shows ages and counts as other commands do"},
	{"cmd/loadplane", "cmd/loadplane/table", "wraps and cleans text for people"},
	{"cmd/loadplane/inspect", "cmd/loadplane/table", "writes tables as other commands do"},
	{"cmd/loadplane/remote", "cmd/loadplane/table", "writes tables that fit the screen"},
	{"cmd/loadplane/remote", "client", "follows a watch"},
	{"cmd/loadplane/remote", "proto/loadplane/v1", "prints messages"},
	{"cmd/loadplane/remote", "proto/loadplane/v1/loadplanev1connect", "asks a running plane"},
	{"client/report", "client/internal/link", "connects to planes"},
	{"client/report", "client/internal/retry", "says when to connect again"},
	{"client/report", "client/report/schedule", "says when reports are due"},
	{"client/report", "proto/loadplane/v1", "speaks the native dialect"},
	{"client/report", "proto/loadplane/v1/loadplanev1connect", "calls the plane"},
	{"cmd/loadreporter", "cmd/loadreporter/build", "builds the reports"},
	{"cmd/loadreporter", "cmd/loadreporter/control", "answers routers and frontends"},
	{"cmd/loadreporter", "cmd/loadreporter/node", "one reporter of an engine"},
	{"cmd/loadreporter", "cmd/loadreporter/owner", "one owner of an engine"},
	{"cmd/loadreporter", "cmd/loadreporter/push", "reports to routers that asked"},
	{"cmd/loadreporter", "cmd/loadreporter/source", "the load is what was sampled"},
	{"cmd/loadreporter", "ingest/probe", "asks the engine what it is"},
	{"cmd/loadreporter", "registry", "the engine is a target of the registry"},
	{"cmd/loadreporter", "registry/egress", "reaches the engine by bounded means"},
	{"cmd/loadreporter", "store", "values and words are the store's"},
	{"cmd/loadreporter/build", "cmd/loadreporter/source", "the load is what was sampled"},
	{"cmd/loadreporter/build", "ingest", "reports are those of all dialects"},
	{"cmd/loadreporter/build", "proto/loadplane/v1", "speaks the native dialect"},
	{"cmd/loadreporter/build", "proto/router/loadmonitor/v1", "builds reports of the push dialect"},
	{"cmd/loadreporter/build", "store", "values and words are the store's"},
	{"cmd/loadreporter/control", "cmd/loadreporter/push", "reports to routers that asked"},
	{"cmd/loadreporter/node", "client/report", "reports to planes"},
	{"cmd/loadreporter/node", "cmd/loadreporter/build", "builds the reports"},
	{"cmd/loadreporter/node", "cmd/loadreporter/control", "answers routers and frontends"},
	{"cmd/loadreporter/node", "cmd/loadreporter/push", "reports to routers that asked"},
	{"cmd/loadreporter/node", "cmd/loadreporter/source", "the load is what was sampled"},
	{"cmd/loadreporter/node", "ingest", "reports are those of all dialects"},
	{"cmd/loadreporter/node", "proto/loadplane/v1", "speaks the native dialect"},
	{"cmd/loadreporter/node", "proto/router/loadmonitor/v1", "the load is in the wire's terms"},
	{"cmd/loadreporter/node", "registry", "planes are told the facts of the engine"},
	{"cmd/loadreporter/node", "store", "values and words are the store's"},
	{"cmd/loadreporter/owner", "cmd/loadreporter/control", "answers routers and frontends"},
	{"cmd/loadreporter/owner", "cmd/loadreporter/node", "one reporter of an engine"},
	{"cmd/loadreporter/owner", "cmd/loadreporter/push", "reports to routers that asked"},
	{"cmd/loadreporter/push", "client/report/schedule", "says when reports are due"},
	{"cmd/loadreporter/push", "proto/router/loadmonitor/v1", "speaks the push dialect"},
	{"cmd/loadreporter/source", "ingest", "reports are those of all dialects"},
	{"cmd/loadreporter/source", "ingest/poll/reader", "reads the load of one engine"},
	{"cmd/loadreporter/source", "registry", "the engine is a target of the registry"},
	{"cmd/loadreporter/source", "registry/egress", "reaches the engine by bounded means"},
	{"cmd/loadreporter/source", "store", "values and words are the store's"},
	{"ingest/loadreport", "ingest", "reports are those of all dialects"},
	{"ingest/loadreport", "registry", "workers and refusals are the registry's"},
	{"ingest/loadreport", "store", "values and words are the store's"},
	{"ingest/loadstat", "ingest", "reports are those of all dialects"},
	{"ingest/loadstat", "ingest/loadstat/message", "decodes what ranks publish"},
	{"ingest/loadstat", "ingest/loadstat/zmtp", "subscribes to a rank"},
	{"ingest/loadstat", "registry", "workers and refusals are the registry's"},
	{"ingest/loadstat", "registry/egress", "reaches the engine by bounded means"},
	{"ingest/loadstat", "store", "values and words are the store's"},
	{"ingest/loadstat/message", "ingest", "reports are those of all dialects"},
	{"ingest/loadstat/message", "registry", "workers and refusals are the registry's"},
	{"ingest/loadstat/message", "store", "values and words are the store's"},
	{"ingest/monitor", "ingest", "reports are those of all dialects"},
	{"ingest/monitor", "ingest/loadreport", "decodes the reports of SGLang"},
	{"ingest/monitor", "proto/sglang/router/loadmonitor/v1", "speaks the monitor dialect"},
	{"ingest/monitor", "registry", "workers and refusals are the registry's"},
	{"ingest/monitor", "registry/egress", "reaches the engine by bounded means"},
	{"ingest/monitor", "store", "values and words are the store's"},
	{"ingest/native", "ingest", "reports are those of all dialects"},
	{"ingest/native", "ingest/native/frame", "decodes the frames of reporters"},
	{"ingest/native", "proto/loadplane/v1", "speaks the native dialect"},
	{"ingest/native", "registry", "workers and refusals are the registry's"},
	{"ingest/native", "store", "values and words are the store's"},
	{"ingest/native/frame", "ingest", "reports are those of all dialects"},
	{"ingest/native/frame", "registry", "workers and refusals are the registry's"},
	{"ingest/native/frame", "store", "values and words are the store's"},
	{"ingest/poll", "ingest/poll/reader", "reads the load of one engine"},
	{"ingest/poll/reader", "ingest", "reports are those of all dialects"},
	{"ingest/poll/reader", "ingest/poll/fields", "tells which fields came and went"},
	{"ingest/poll/reader", "ingest/poll/sample", "reads the pages of engines"},
	{"ingest/poll/reader", "ingest/poll/survey", "finds the page to read"},
	{"ingest/poll/reader", "registry", "workers and refusals are the registry's"},
	{"ingest/poll/reader", "registry/egress", "reaches the engine by bounded means"},
	{"ingest/poll/reader", "store", "values and words are the store's"},
	{"ingest/push", "ingest/loadreport", "decodes the reports of SGLang"},
	{"registry", "registry/lease", "keeps the leases of reporters"},
	{"service", "ingest/loadstat", "composition"},
	{"service", "ingest/monitor", "composition"},
	{"service", "ingest/native", "composition"},
	{"sim", "sim/loadstat", "engines of the loadstat dialect"},
	{"sim", "sim/monitor", "engines of the monitor dialect"},
	{"sim", "sim/native", "engines that register themselves"},
	{"sim", "sim/ports", "gives engines their listeners"},
	{"sim", "sim/push", "engines of the push dialect"},
	{"sim/loadstat", "proto/router/loadmonitor/v1", "the load is in the wire's terms"},
	{"sim/loadstat", "sim/queue", "the load is that of the queues"},
	{"sim/loadstat", "sim/reporter", "reports the load of the process"},
	{"sim/monitor", "proto/router/loadmonitor/v1", "the load is in the wire's terms"},
	{"sim/monitor", "proto/sglang/router/loadmonitor/v1", "speaks the monitor dialect"},
	{"sim/monitor", "sim/reporter", "reports the load of the process"},
	{"sim/native", "client/report", "reports to planes"},
	{"sim/native", "proto/loadplane/v1", "speaks the native dialect"},
	{"sim/native", "proto/router/loadmonitor/v1", "the load is in the wire's terms"},
	{"sim/native", "sim/queue", "the load is that of the queues"},
	{"sim/native", "sim/reporter", "reports the load of the process"},
	{"sim/push", "sim/face", "shows the pages of its kind"},
	{"sim/push", "sim/face/page", "answers like the engine's own server"},
	{"sim/push", "sim/reporter", "reports the load of the process"},
	{"ingest/monitor", "ingest/monitor/frame", "encodes and decodes the frames"},
	{"ingest/monitor", "ingest/monitor/link", "connects to load reporters"},
	{"ingest/monitor/frame", "proto/sglang/router/loadmonitor/v1", "speaks the monitor dialect"},
	{"ingest/monitor/link", "proto/sglang/router/loadmonitor/v1", "speaks the monitor dialect"},
	{"ingest/monitor/link", "registry/egress", "reaches the engine by bounded means"},
}

// wall keeps packages of other modules out of a folder and those below it.
type wall struct {
	under  string
	out    string
	except []string
	why    string
}

var walls = []wall{
	{under: "store", out: "google.golang.org/grpc", why: "the store knows no wire"},
	{under: "store", out: "google.golang.org/protobuf", except: []string{"store/snapshot"}, why: "only entries that changed are encoded, in snapshot"},
	{under: "store", out: "google.golang.org/protobuf/proto", why: "no message of the wire is built before the API"},
	{under: "store", out: "google.golang.org/protobuf/types", why: "no message of the wire is built before the API"},
	{under: "store", out: "connectrpc.com/", why: "the store knows no wire"},
	{under: "registry", out: "google.golang.org/", why: "admission knows no wire"},
	{under: "registry", out: "connectrpc.com/", why: "admission knows no wire"},
	{under: "client", out: "github.com/prometheus/", except: []string{"client/metrics"}, why: "routers bring their own metrics"},
	{under: "client", out: "google.golang.org/", why: "routers take the Connect runtime and nothing else"},
	{under: "client/pick", out: "connectrpc.com/", why: "picking is arithmetic"},
	{under: "ingest", out: "connectrpc.com/", why: "engines speak gRPC only"},
	{under: "", out: "github.com/hashicorp/go-memdb", except: []string{"store"}, why: "no raw transaction leaves the store"},
	{under: "", out: "github.com/spf13/cobra", except: []string{"cmd/loadplane", "cmd/loadplane/usage", "cmd/loadreporter"}, why: "commands stay in the commands"},
}

func TestImportDirections(t *testing.T) { hold(t, importDirections(edges)) }
func TestNoUnusedEdges(t *testing.T)    { hold(t, unusedEdges(edges)) }
func TestWalls(t *testing.T)            { hold(t, importWalls) }
func TestTestImports(t *testing.T)      { hold(t, testImports) }

func TestEdgesHaveReasons(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range edges {
		key := e.from + " -> " + e.to
		if e.why == "" || seen[key] {
			t.Errorf("edge %s has no reason or stands twice", key)
		}
		seen[key] = true
	}
}

func TestImportRulesCatch(t *testing.T) {
	allowed := []edge{{"api", "store", "reads"}}
	imp := func(dir string) string { return fmt.Sprintf("package p\nimport _ %q\n", path.Join(module, dir)) }
	catch(t, importDirections(allowed), []breaks{
		{"allowed", map[string]string{"api/a.go": imp("store")}, ""},
		{"back edge", map[string]string{"store/a.go": imp("api")}, "store imports api"},
		{"only by test", map[string]string{"store/a_test.go": imp("api")}, ""},
	})
	catch(t, unusedEdges(allowed), []breaks{
		{"used", map[string]string{"api/a.go": imp("store")}, ""},
		{"unused", map[string]string{"api/a_test.go": imp("store")}, "nobody uses the edge api -> store"},
	})
	catch(t, importWalls, []breaks{
		{"wire in store", map[string]string{"store/snapshot/a.go": "package p\nimport _ \"google.golang.org/grpc/codes\"\n"}, "knows no wire"},
		{"memdb in api", map[string]string{"api/a.go": "package p\nimport _ \"github.com/hashicorp/go-memdb\"\n"}, "no raw transaction"},
		{"memdb in store", map[string]string{"store/a.go": "package p\nimport _ \"github.com/hashicorp/go-memdb\"\n"}, ""},
	})
	catch(t, testImports, []breaks{
		{"service from store", map[string]string{"store/a_test.go": imp("service")}, "imports service"},
		{"service from e2e", map[string]string{"e2e/a_test.go": imp("service")}, ""},
		{"command from e2e", map[string]string{"e2e/a_test.go": imp("cmd/loadplane")}, "imports cmd/loadplane"},
		{"part of a command from it", map[string]string{"cmd/c/a/a_test.go": imp("cmd/c/b")}, ""},
		{"part of another command", map[string]string{"cmd/c/a/a_test.go": imp("cmd/d/b")}, "imports cmd/d/b"},
	})
}

// used returns the edges of shipped code, each with a file that has it.
func used(tr *tree) map[edge]string {
	found := map[edge]string{}
	ships := func(f *file) bool { return !f.test }
	tr.each(ships, func(p *pkg, f *file) {
		for _, imp := range f.imports() {
			if to, ok := own(imp); ok {
				found[edge{from: p.dir, to: to}] = f.path
			}
		}
	})
	return found
}

func importDirections(allowed []edge) rule {
	return func(tr *tree) (findings []string) {
		for e, where := range used(tr) {
			has := func(a edge) bool { return a.from == e.from && a.to == e.to }
			if !slices.ContainsFunc(allowed, has) {
				findings = append(findings, fmt.Sprintf("%s: %s imports %s, which no edge allows", where, e.from, e.to))
			}
		}
		return findings
	}
}

func unusedEdges(allowed []edge) rule {
	return func(tr *tree) (findings []string) {
		found := used(tr)
		for _, a := range allowed {
			if _, ok := found[edge{from: a.from, to: a.to}]; !ok {
				findings = append(findings, fmt.Sprintf("nobody uses the edge %s -> %s", a.from, a.to))
			}
		}
		return findings
	}
}

func importWalls(tr *tree) (findings []string) {
	ships := func(f *file) bool { return !f.test }
	tr.each(ships, func(p *pkg, f *file) {
		for _, imp := range f.imports() {
			for _, w := range walls {
				if within(p.dir, w.under) && strings.HasPrefix(imp, w.out) && !slices.Contains(w.except, p.dir) {
					findings = append(findings, fmt.Sprintf("%s: %s imports %s: %s", f.path, p.dir, imp, w.why))
				}
			}
		}
	})
	return findings
}

// testImports lets tests import what they need except the command and, away
// from the composition, the service.
func testImports(tr *tree) (findings []string) {
	tr.each(tests, func(p *pkg, f *file) {
		for _, imp := range f.imports() {
			to, ok := own(imp)
			if !ok || to == p.dir {
				continue
			}
			composes := within(p.dir, "e2e") || within(p.dir, "cmd") || within(p.dir, "service")
			library := to == "e2e/history" && within(p.dir, "e2e") || to == "cmd/logqueue" && within(p.dir, "cmd")
			if library || sameCommand(p.dir, to) {
				continue
			}
			if within(to, "cmd") || within(to, "e2e") || within(to, "service") && !composes {
				findings = append(findings, fmt.Sprintf("%s: a test imports %s", f.path, to))
			}
		}
	})
	return findings
}

// sameCommand says whether a folder below a command is asked for by the same
// command.
func sameCommand(from, to string) bool {
	command, _, below := strings.Cut(strings.TrimPrefix(to, "cmd/"), "/")
	return below && strings.HasPrefix(to, "cmd/") && within(from, "cmd/"+command)
}

// within says whether dir is under or below it; an empty under has all.
func within(dir, under string) bool {
	return under == "" || dir == under || strings.HasPrefix(dir, under+"/")
}
