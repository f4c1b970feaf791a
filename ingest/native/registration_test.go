package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestRegister(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		answer := r.register(&loadplanev1.RegisterRequest{
			Url: testURL, Role: loadplanev1.Role_ROLE_PREFILL, Models: []string{"b", "a"}, Zone: "z",
			Labels: map[string]string{"k": "v"}, Engine: "vllm", EngineVersion: "0.12", ReportIntervalMs: 100, LeaseTtlMs: 2000,
		})
		if answer.GetWorkerId() != testURL || len(answer.GetLeaseId()) < 20 {
			t.Errorf("answered %v", answer)
		}
		if g := answer.GetGrant(); g.GetReportIntervalMs() != 100 || g.GetLeaseTtlMs() != 2000 || g.GetRenewAfterMs() == 0 {
			t.Errorf("granted %v", g)
		}
		p.settle()
		w := p.entry(testURL).Worker
		if w.Role != store.RolePrefill || strings.Join(w.Models, " ") != "a b" || w.Zone != "z" || w.Labels["k"] != "v" {
			t.Errorf("listed as %+v", w)
		}
		if got := testutil.ToFloat64(p.service.metrics.registrations.WithLabelValues(outcomeBegun)); got != 1 {
			t.Errorf("%v registrations were counted", got)
		}
	})
}

// TestRegistrationsInALoopAreLoggedSparsely.
func TestRegistrationsInALoopAreLoggedSparsely(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		for range 10 * arrivalLines {
			r.register(&loadplanev1.RegisterRequest{Url: testURL})
			if _, err := r.calls.Deregister(t.Context(), &loadplanev1.DeregisterRequest{LeaseId: r.lease}); err != nil {
				t.Fatal(err)
			}
			r.lease = ""
		}
		if n := strings.Count(p.log.String(), "reporter registered"); n < arrivalLines || n > arrivalLines+1 {
			t.Errorf("%d lines", n)
		}
	})
}

// many returns n texts.
func many(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprint(i)
	}
	return texts
}

func TestRegisterRefuses(t *testing.T) {
	long := strings.Repeat("x", 257)
	labels := map[string]string{}
	for _, k := range many(65) {
		labels[k] = k
	}
	for _, tt := range []struct {
		name   string
		from   string
		req    *loadplanev1.RegisterRequest
		reason store.Reason
		code   codes.Code
	}{
		{"no URL", "", &loadplanev1.RegisterRequest{}, registry.ReasonBadRegistration, codes.InvalidArgument},
		{"bad URL", "", &loadplanev1.RegisterRequest{Url: "ftp://127.0.0.2"}, registry.ReasonBadRegistration, codes.InvalidArgument},
		{"long URL", "", &loadplanev1.RegisterRequest{Url: "http://127.0.0.2/" + long}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long zone", "", &loadplanev1.RegisterRequest{Url: testURL, Zone: long}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long lease", "", &loadplanev1.RegisterRequest{Url: testURL, LeaseId: long}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long engine", "", &loadplanev1.RegisterRequest{Url: testURL, Engine: long}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long version", "", &loadplanev1.RegisterRequest{Url: testURL, EngineVersion: long}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long model", "", &loadplanev1.RegisterRequest{Url: testURL, Models: []string{long}}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long label", "", &loadplanev1.RegisterRequest{Url: testURL, Labels: map[string]string{"k": long}}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"long label name", "", &loadplanev1.RegisterRequest{Url: testURL, Labels: map[string]string{long: "v"}}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"65 models", "", &loadplanev1.RegisterRequest{Url: testURL, Models: many(65)}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"65 labels", "", &loadplanev1.RegisterRequest{Url: testURL, Labels: labels}, ingest.ReasonStringTooLong, codes.InvalidArgument},
		{"control character", "", &loadplanev1.RegisterRequest{Url: testURL, Zone: "a\nb"}, ingest.ReasonMalformed, codes.InvalidArgument},
		{"role", "", &loadplanev1.RegisterRequest{Url: testURL, Role: 9}, ingest.ReasonBadRole, codes.InvalidArgument},
		{"unknown lease", "", &loadplanev1.RegisterRequest{Url: testURL, LeaseId: "guess"}, registry.ReasonUnknownLease, codes.NotFound},
		{"another peer", "127.0.0.3:1", &loadplanev1.RegisterRequest{Url: testURL}, registry.ReasonPeerMismatch, codes.PermissionDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, setup{}, func(t *testing.T, p *plane) {
				if tt.from == "" {
					tt.from = testPeer
				}
				_, err := p.reporter(tt.from).calls.Register(t.Context(), tt.req)
				if status.Code(err) != tt.code || p.denied(tt.reason) != 1 {
					t.Errorf("%v, counted %v as %s", err, p.denied(tt.reason), tt.reason)
				}
				p.settle()
				if st, _ := p.store.Current(); len(st.Entries) != 0 {
					t.Errorf("%d workers are listed", len(st.Entries))
				}
			})
		})
	}
}

func TestRegistrationRules(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   registry.Options
		reason store.Reason
		code   codes.Code
	}{
		{"off", registry.Options{Registration: registry.RegistrationOff}, registry.ReasonRegistrationOff, codes.PermissionDenied},
		{"full", registry.Options{MaxWorkers: 1, Workers: []string{"http://127.0.0.9:1,dialect=none"}}, registry.ReasonTooManyWorkers, codes.ResourceExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, setup{registry: tt.opts}, func(t *testing.T, p *plane) {
				_, err := p.reporter(testPeer).calls.Register(t.Context(), &loadplanev1.RegisterRequest{Url: testURL})
				if status.Code(err) != tt.code || p.denied(tt.reason) != 1 {
					t.Errorf("%v, counted %v as %s", err, p.denied(tt.reason), tt.reason)
				}
			})
		})
	}
}

// What cannot be decoded, or is too large, is refused by its reason.
func TestRawRegistrations(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		for name, tt := range map[string]struct {
			method string
			frame  []byte
			reason store.Reason
			code   codes.Code
		}{
			"malformed":           {loadplanev1.RegistrationService_Register_FullMethodName, []byte{0xff}, ingest.ReasonMalformed, codes.InvalidArgument},
			"malformed lease":     {loadplanev1.RegistrationService_Deregister_FullMethodName, []byte{0xff}, ingest.ReasonMalformed, codes.InvalidArgument},
			"large":               {loadplanev1.RegistrationService_Register_FullMethodName, make([]byte, 64<<10+1), ingest.ReasonMessageTooLarge, codes.ResourceExhausted},
			"long lease to end":   {loadplanev1.RegistrationService_Deregister_FullMethodName, encoded(t, &loadplanev1.DeregisterRequest{LeaseId: strings.Repeat("x", 129)}), ingest.ReasonStringTooLong, codes.InvalidArgument},
			"no lease to end":     {loadplanev1.RegistrationService_Deregister_FullMethodName, nil, registry.ReasonUnknownLease, codes.NotFound},
			"no URL, many fields": {loadplanev1.RegistrationService_Register_FullMethodName, []byte{0x78, 1}, registry.ReasonBadRegistration, codes.InvalidArgument},
		} {
			before := p.denied(tt.reason)
			err := r.cc.Invoke(t.Context(), tt.method, tt.frame, new(loadplanev1.RegisterResponse), grpc.ForceCodecV2(rawCodec{}))
			if status.Code(err) != tt.code || p.denied(tt.reason) != before+1 {
				t.Errorf("%s: %v, counted %v as %s", name, err, p.denied(tt.reason)-before, tt.reason)
			}
		}
	})
}

// The hook decides by the peer, the metadata and the request; what it says goes
// to the log alone.
func TestAuthorizeHook(t *testing.T) {
	hook := func(ctx context.Context, r *loadplanev1.RegisterRequest) error {
		if r.GetZone() == "mine" && ingest.Peer(ctx).String() == testPeer {
			return nil
		}
		return errors.New("secret detail")
	}
	inBubble(t, setup{service: Options{Authorize: hook}}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		_, err := r.calls.Register(t.Context(), &loadplanev1.RegisterRequest{Url: testURL})
		if status.Code(err) != codes.Unauthenticated || strings.Contains(err.Error(), "secret") || p.denied(ingest.ReasonUnauthorized) != 1 {
			t.Errorf("refused as %v", err)
		}
		if !strings.Contains(p.log.String(), "secret detail") {
			t.Error("the log does not say why")
		}
		r.register(&loadplanev1.RegisterRequest{Url: testURL, Zone: "mine"})
	})
}

func TestNewRefusesOptions(t *testing.T) {
	clock, reg := store.NewClock(), new(registry.Registry)
	for name, o := range map[string]Options{
		"no registry": {Clock: clock},
		"no clock":    {Registry: reg},
		"ranks":       {Registry: reg, Clock: clock, MaxRanks: ingest.HardMaxRanks + 1},
		"no ranks":    {Registry: reg, Clock: clock, MaxRanks: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	registerer := prometheus.NewRegistry()
	for i, wantErr := range []bool{false, true} {
		if _, err := New(Options{Registry: reg, Clock: clock, Registerer: registerer}); (err != nil) != wantErr {
			t.Errorf("registration %d: %v", i, err)
		}
	}
}
