package sim

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/sim/push"
)

const valid = `{"ip":"127.0.0.1","port":7401,"report_interval_ms":1000,"lease_ttl_ms":15000}`

// replaced is the valid body with one part replaced.
func replaced(old, now string) string { return strings.Replace(valid, old, now, 1) }

func TestStartReportingContract(t *testing.T) {
	tests := []struct {
		name string
		body string
		code int
		want string // of the body, exact for 200, part of the message else
	}{
		{"valid", valid, 200, `{"status":"reporting","lease_ttl_ms":15000,"renew_after_ms":5000}`},
		{"lease of 10 rounds down", replaced("15000", "10"), 200, `{"status":"reporting","lease_ttl_ms":10,"renew_after_ms":3}`},
		{"lease of 1", replaced("15000", "1"), 200, `{"status":"reporting","lease_ttl_ms":1,"renew_after_ms":1}`},
		{"interval above lease", replaced(":1000", ":99000"), 200, `{"status":"reporting","lease_ttl_ms":15000,"renew_after_ms":5000}`},
		{"largest lease", replaced("15000", "9223372036854775807"), 200, `{"status":"reporting","lease_ttl_ms":9223372036854775807,"renew_after_ms":3074457345618258602}`},
		{"IPv6", replaced("127.0.0.1", "::1"), 200, `{"status":"reporting","lease_ttl_ms":15000,"renew_after_ms":5000}`},
		{"ip missing", replaced(`"ip":"127.0.0.1",`, ""), 400, "body.ip: field required"},
		{"port missing", replaced(`"port":7401,`, ""), 400, "body.port: field required"},
		{"interval missing", replaced(`"report_interval_ms":1000,`, ""), 400, "body.report_interval_ms: field required"},
		{"lease missing", replaced(`,"lease_ttl_ms":15000`, ""), 400, "body.lease_ttl_ms: field required"},
		{"unknown key", replaced(`"ip"`, `"mode":1,"ip"`), 400, "body.mode: extra inputs"},
		{"key in another case", replaced(`"ip"`, `"IP"`), 400, "body.IP: extra inputs"},
		{"host name", replaced("127.0.0.1", "localhost"), 400, "body.ip"},
		{"ip with port", replaced("127.0.0.1", "127.0.0.1:1"), 400, "body.ip"},
		{"bracketed IPv6", replaced("127.0.0.1", "[::1]"), 400, "body.ip"},
		{"ip as number", replaced(`"127.0.0.1"`, "2130706433"), 400, "body.ip: not a string"},
		{"port as string", replaced(":7401", `:"30222"`), 400, "body.port: not a valid integer"},
		{"port with fraction", replaced(":7401", ":1.0"), 400, "body.port: not a valid integer"},
		{"port with exponent", replaced(":7401", ":1e3"), 400, "body.port: not a valid integer"},
		{"port true", replaced(":7401", ":true"), 400, "body.port: not a valid integer"},
		{"port null", replaced(":7401", ":null"), 400, "body.port: not a valid integer"},
		{"port 0", replaced(":7401", ":0"), 400, "body.port: must be from 1 to 65535"},
		{"port 65536", replaced(":7401", ":65536"), 400, "body.port: must be from 1 to 65535"},
		{"interval 0", replaced(":1000", ":0"), 400, "body.report_interval_ms"},
		{"interval as string", replaced(":1000", `:"1000"`), 400, "body.report_interval_ms"},
		{"lease negative", replaced("15000", "-1"), 400, "body.lease_ttl_ms"},
		{"lease beyond 64 bits", replaced("15000", "9223372036854775808"), 400, "body.lease_ttl_ms"},
		{"no JSON", "ip=127.0.0.1", 400, "body: not a JSON object"},
		{"null", "null", 400, "body: not a JSON object"},
		{"array", "[]", 400, "body: not a JSON object"},
		{"empty", "", 400, "body: not a JSON object"},
		{"too large", `{"ip":"` + strings.Repeat("1", 65<<10) + `"}`, 400, "body: not readable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, Options{}, func(b *bench) {
				w := post(b.engine(), "engine:1", tt.body)
				if w.Code != tt.code {
					t.Fatalf("answered %d %s, want %d", w.Code, w.Body, tt.code)
				}
				if tt.code == 200 {
					if got := strings.TrimSpace(w.Body.String()); got != tt.want {
						t.Errorf("answered %s, want %s", got, tt.want)
					}
				} else {
					checkError(t, w, "Bad Request", tt.want)
				}
				if live := b.engine().Monitors() == 1; live != (tt.code == 200) {
					t.Errorf("%d monitors after a %d", b.engine().Monitors(), tt.code)
				}
			})
		})
	}
}

// checkError holds the body against the error shape of the engine.
func checkError(t *testing.T, w *httptest.ResponseRecorder, kind, message string) {
	t.Helper()
	var body map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	param, hasParam := body["param"]
	got, _ := body["message"].(string)
	if body["object"] != "error" || body["type"] != kind || body["code"] != float64(w.Code) ||
		!hasParam || param != nil || !strings.Contains(got, message) || len(body) != 5 {
		t.Errorf("error body %v, want type %q and message %q", body, kind, message)
	}
}

func TestContentTypeOfARegistration(t *testing.T) {
	tests := map[string]int{
		"": 200, "application/json": 200, "application/json; charset=utf-8": 200, "application/x+json": 200,
		"text/plain": 400, "text/json": 400, "application/x-www-form-urlencoded": 400, ";": 400,
	}
	for contentType, code := range tests {
		t.Run(contentType, func(t *testing.T) {
			inBubble(t, Options{}, func(b *bench) {
				r := httptest.NewRequest(http.MethodPost, push.Path, strings.NewReader(valid))
				r.Header.Set("Content-Type", contentType)
				w := httptest.NewRecorder()
				b.engine().handler(nil).ServeHTTP(w, r)
				if w.Code != code {
					t.Errorf("answered %d, want %d", w.Code, code)
				}
			})
		})
	}
}

func TestALiveTargetBelongsToOneOrigin(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		b.plane(7401, nil)
		steps := []struct {
			name, host, body string
			after            time.Duration
			code             int
		}{
			{"first", "engine:1", valid, 0, 200},
			{"same origin", "ENGINE:1", valid, 1000 * ms, 200},
			{"other port", "engine:2", valid, 0, 409},
			{"other host", "10.0.0.1:1", valid, 0, 409},
			{"other origin for another target", "engine:2", replaced("7401", "7402"), 0, 200},
			{"shortly before the lease ends", "engine:2", valid, 14_999 * ms, 409},
			{"after the lease", "engine:2", valid, 1 * ms, 200},
		}
		for _, s := range steps {
			b.pass(s.after)
			w := post(b.engine(), s.host, s.body)
			if w.Code != s.code {
				t.Fatalf("%s: answered %d, want %d", s.name, w.Code, s.code)
			}
			if s.code == http.StatusConflict {
				checkError(t, w, "409", "owned by another")
			}
		}
	})
}

func TestTheSameAddressInOtherWordsIsTheSameTarget(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		post(b.engine(), "engine:1", replaced("127.0.0.1", "::1"))
		post(b.engine(), "engine:1", replaced("127.0.0.1", "0:0:0:0:0:0:0:1"))
		if got := b.engine().Monitors(); got != 1 {
			t.Errorf("%d monitors, want 1", got)
		}
	})
}

func TestAClosingEngineAnswers503(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		e := b.engine()
		e.current().Close()
		w := post(e, "engine:1", valid)
		if w.Code != http.StatusServiceUnavailable {
			t.Fatalf("answered %d", w.Code)
		}
		checkError(t, w, "503", "closing")
	})
}

func TestOtherEndpoints(t *testing.T) {
	tests := []struct {
		method, path string
		code         int
		allow        string
	}{
		{"GET", "/v1/start_reporting", 405, "POST"},
		{"HEAD", "/v1/start_reporting", 405, "POST"},
		{"DELETE", "/v1/start_reporting", 405, "POST"},
		{"GET", "/health", 200, ""},
		{"GET", "/server_info", 200, ""},
		{"GET", "/metrics", 200, ""},
		{"GET", "/v1/loads", 200, ""},
		{"POST", "/v1/loads", 404, ""},
		{"POST", "/v1/stop_reporting", 404, ""},
	}
	inBubble(t, Options{}, func(b *bench) {
		for _, tt := range tests {
			w := httptest.NewRecorder()
			b.engine().handler(nil).ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, nil))
			if w.Code != tt.code || w.Header().Get("Allow") != tt.allow {
				t.Errorf("%s %s: %d, Allow %q", tt.method, tt.path, w.Code, w.Header().Get("Allow"))
			}
			if tt.code >= 400 {
				checkError(t, w, map[int]string{404: "404", 405: "405"}[tt.code], "")
			}
		}
	})
}

func TestServerInfoOffersPushOnly(t *testing.T) {
	inBubble(t, Options{Engines: 4, Ranks: 2, Model: "m", Kinds: []Kind{KindSGLang}, Mixed: true, Zones: []string{"z"}}, func(b *bench) {
		for i, mode := range []string{"null", "prefill", "decode", "null"} {
			for _, path := range []string{"/server_info", "/get_server_info"} {
				var info map[string]any
				b.json(i, path, &info)
				port, has := info["load_reporter_port"]
				if !has || port != nil || info["dp_size"] != 2.0 || info["served_model_name"] != "m" ||
					info["disaggregation_mode"] != mode || info["load_reporter_zone"] != "z" {
					t.Errorf("engine %d: %v", i, info)
				}
				for key := range info["kv_events"].(map[string]any) {
					if strings.HasPrefix(key, "load_") {
						t.Errorf("kv_events offers %s", key)
					}
				}
			}
		}
	})
}
