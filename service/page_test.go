package service

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/service/internal/testcert"
)

// The files of the page need no credential, and nothing else comes with them.
func TestPageIsFreeAndNothingElseIs(t *testing.T) {
	f := testcert.NewFiles(t, testcert.NewAuthority(t, "ca"), testcert.NewAuthority(t, "ca"))
	cfg := testConfig()
	cfg.APITokenFile = f.Token
	p := startPlane(t, cfg)
	hc := httpClient(t, nil, false)
	const browser = "text/html,*/*;q=0.8"
	for _, c := range []struct {
		method, path, accept, token string
		status                      int
		contains                    string
	}{
		{"GET", "/", browser, "", 200, `src="/assets/app.js"`},
		{"HEAD", "/", browser, "", 200, ""},
		{"GET", "/", browser, testcert.Token, 200, `src="/assets/app.js"`},
		{"GET", "/assets/app.js", "*/*", "", 200, "use strict"},
		{"GET", "/assets/app.css", "text/css", "", 200, "--ground"},
		{"GET", "/assets/theme.js", "*/*", "wrong", 200, "theme"},
		{"GET", "/assets/icon.svg", "image/svg+xml", "", 200, "<svg"},

		{"GET", "/", "*/*", "", 401, ""},
		{"GET", "/", "*/*", testcert.Token, 200, "GET  /v1/load_monitor/snapshot"},
		{"POST", "/", browser, "", 401, ""},
		{"GET", "/assets/", browser, "", 401, ""},
		{"GET", "/assets/none.js", browser, "", 401, ""},
		{"GET", "/assets/%2e%2e/v1/load_monitor/snapshot", browser, "", 401, ""},
		{"GET", "/assets/app.js/../../v1/pick", browser, "", 401, ""},
		{"POST", "/assets/app.js", browser, "", 401, ""},
		{"GET", "/v1/load_monitor/snapshot", browser, "", 401, ""},
		{"GET", "/v1/load_monitor/watch", browser, "", 401, ""},
		{"GET", "/v1/pick", browser, "", 401, ""},
		{"POST", "/loadplane.v1.SnapshotService/WatchSnapshots", browser, "", 401, ""},
		{"POST", "/loadplane.v1.SnapshotService/GetSnapshot", browser, "", 401, ""},
		{"GET", "/loadplane.v1.WorkerService/ListWorkers", browser, "", 401, ""},
		{"POST", "/loadplane.v1.WorkerService/ExplainWorker", browser, "", 401, ""},
		{"POST", "/grpc.health.v1.Health/Check", browser, "", 401, ""},
		{"GET", "/other", browser, "", 401, ""},
	} {
		status, body := p.as(hc, c.method, c.path, http.Header{"Accept": {c.accept}, "Authorization": {"Bearer " + c.token}})
		if status != c.status || !strings.Contains(body, c.contains) {
			t.Errorf("%s %s, Accept %s, token %q: %d, want %d with %q", c.method, c.path, c.accept, c.token, status, c.status, c.contains)
		}
	}
}

// as asks the API; a header without a token is left out.
func (p *plane) as(c *http.Client, method, path string, header http.Header) (int, string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url(config.API)+path, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	if header.Get("Authorization") == "Bearer " {
		header.Del("Authorization")
	}
	r.Header = header
	resp, err := c.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var body strings.Builder
	if _, err := io.Copy(&body, resp.Body); err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, body.String()
}
