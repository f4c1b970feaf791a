package store_test

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// family returns the only metric of a name.
func (p *plane) family(name string) *dto.Metric {
	p.t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0]
		}
	}
	p.t.Fatalf("no metric %s", name)
	return nil
}

func TestAgesAtReceipt(t *testing.T) {
	for _, c := range []struct {
		name string
		// report and sample are how long before the receipt they were made.
		report, sample time.Duration
		// reported and sampled are the seconds that count; below 0 for none.
		reported, sampled float64
		clockOff          float64
	}{
		{"just now", 0, 0, 0, 0, 0},
		{"a report that was long on its way", 2 * time.Second, 2500 * time.Millisecond, 2, 2.5, 0},
		{"an old sample in a new report", 0, time.Minute, 0, 60, 0},
		{"a clock that is a little ahead", -10 * time.Millisecond, 0, 0, 0, 0},
		{"a clock that is ahead", -11 * time.Millisecond, -11 * time.Millisecond, -1, -1, 1},
		{"a clock that is behind", time.Minute + time.Millisecond, time.Hour, -1, -1, 1},
		{"1970", 1 << 62, 1 << 62, -1, -1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				l := p.load(1, 1)
				l.ReportUnixMs = max(0, l.ReceivedUnixMs-c.report.Milliseconds())
				l.Samples[0].TimeUnixMs = max(0, l.ReceivedUnixMs-c.sample.Milliseconds())
				sl.Offer(1, l)
				p.settled()
				wantAge(p, "loadplane_store_report_age_seconds", c.reported)
				wantAge(p, "loadplane_store_sample_age_seconds", c.sampled)
				if got := p.family("loadplane_store_clock_off_total").GetCounter().GetValue(); got != c.clockOff {
					t.Errorf("%v clocks off, want %v", got, c.clockOff)
				}
			})
		})
	}
}

// wantAge checks that a histogram saw one age, or, below 0, none.
func wantAge(p *plane, name string, seconds float64) {
	p.t.Helper()
	count := uint64(1)
	if seconds < 0 {
		count, seconds = 0, 0
	}
	h := p.family(name).GetHistogram()
	if h.GetSampleCount() != count || h.GetSampleSum() != seconds {
		p.t.Errorf("%s saw %d, sum %v, want %d of %v", name, h.GetSampleCount(), h.GetSampleSum(), count, seconds)
	}
}

func TestUnknownTimesHaveNoAge(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		l := p.load(1, 1)
		l.ReportUnixMs = -1
		sl.Offer(1, l)
		p.settled()
		wantAge(p, "loadplane_store_report_age_seconds", -1)
		wantAge(p, "loadplane_store_sample_age_seconds", -1)
	})
}

// TestBug30TimeFromReceiptToPublication shows the part of the age that the plane
// itself adds: a settle time, and no more.
func TestBug30TimeFromReceiptToPublication(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		for seq := range uint64(10) {
			sl.Offer(1, p.load(seq+1, int64(seq)))
			p.after(interval)
		}
		h := p.family("loadplane_store_receipt_to_publish_seconds").GetHistogram()
		if h.GetSampleCount() != 10 || h.GetSampleSum() > 10*settle.Seconds()+1e-9 || h.GetSampleSum() < 0.09 {
			t.Errorf("%d reports waited %v s together", h.GetSampleCount(), h.GetSampleSum())
		}
	})
}
