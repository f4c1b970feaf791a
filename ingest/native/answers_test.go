package native

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
)

// heard is an answer and when it was sent.
type heard struct {
	*loadplanev1.ReportResponse
	at time.Duration
}

// speak runs answers in a bubble whose body leaves some; it returns what was
// sent in d.
func speak(t *testing.T, d time.Duration, body func(a *answers)) (all []heard) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		start := time.Now()
		a := newAnswers(func(m *loadplanev1.ReportResponse) error {
			all = append(all, heard{m, time.Since(start)})
			return nil
		})
		go a.run()
		body(a)
		<-time.After(d - time.Since(start))
		close(a.stop)
		synctest.Wait()
	})
	return all
}

// The newest refusal is told, once a second; the first one at once.
func TestRefusalsAreThinned(t *testing.T) {
	drop := ingest.Refuse(ingest.ReasonBadTime, "x")
	all := speak(t, 10*time.Second, func(a *answers) {
		for i := range 350 {
			a.refuse(uint64(i), drop)
			<-time.After(10 * time.Millisecond)
		}
	})
	if len(all) != 5 {
		t.Fatalf("%d refusals were told of 350 in 3.5 s", len(all))
	}
	for i, want := range []uint64{0, 100, 200, 300, 349} {
		r := all[i].GetRefusal()
		if all[i].at.Round(time.Second/100) != time.Duration(i)*time.Second || r.GetSequence()+1 < want || r.GetSequence() > want {
			t.Errorf("refusal %d is of report %d at %s", i, r.GetSequence(), all[i].at)
		}
		if r.GetReason() != string(ingest.ReasonBadTime) || r.GetMessage() != "x" {
			t.Errorf("refusal %v", r)
		}
	}
}

// A grant does not wait for a refusal, and only the newest one is told.
func TestGrantsAreNotThinned(t *testing.T) {
	all := speak(t, 10*time.Second, func(a *answers) {
		a.refuse(1, ingest.Refuse(ingest.ReasonBadTime, "x"))
		synctest.Wait()
		a.allow(registry.Grant{Interval: time.Second})
		a.allow(registry.Grant{Interval: 2 * time.Second, TTL: 9 * time.Second, RenewAfter: 3 * time.Second})
		synctest.Wait()
	})
	if len(all) != 2 || all[1].at != 0 {
		t.Fatalf("told %v", all)
	}
	if g := all[1].GetGrant(); g.GetReportIntervalMs() != 2000 || g.GetLeaseTtlMs() != 9000 || g.GetRenewAfterMs() != 3000 {
		t.Errorf("granted %v", g)
	}
}

// An answer that is not taken is noticed after five seconds; who leaves answers
// does not wait.
func TestStuckAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan struct{})
		a := newAnswers(func(*loadplanev1.ReportResponse) error {
			<-taken
			return errors.New("the stream is over")
		})
		go a.run()
		begin := time.Now()
		for i := range 1000 {
			a.refuse(uint64(i), ingest.Refuse(ingest.ReasonBadTime, "x"))
			a.allow(registry.Grant{})
		}
		<-a.stuck
		if took := time.Since(begin); took != writeTimeout {
			t.Errorf("noticed after %s", took)
		}
		close(taken)
	})
}
