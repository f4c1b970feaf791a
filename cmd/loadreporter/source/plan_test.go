package source

import (
	"math/rand/v2"
	"testing"
	"time"
)

var epoch = time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// TestPlanDoesNotDrift has each sample begin late and take long.
func TestPlanDoesNotDrift(t *testing.T) {
	for name, c := range map[string]struct {
		period, late, takes time.Duration
		each                time.Duration
	}{
		"10 ms":          {ms(10), ms(0.7), ms(2), ms(10)},
		"100 ms":         {ms(100), ms(3), ms(40), ms(100)},
		"1 s":            {time.Second, ms(1), ms(900), time.Second},
		"too slow":       {ms(100), ms(1), ms(130), ms(200)},
		"exactly as due": {ms(100), 0, ms(100), ms(200)},
	} {
		t.Run(name, func(t *testing.T) {
			var p plan
			p.want("a", c.period, epoch)
			for i := range 1000 {
				at, ok := p.due()
				if want := epoch.Add(time.Duration(i) * c.each); !ok || !at.Equal(want) {
					t.Fatalf("sample %d is due at %s, want %s", i, at.Sub(epoch), want.Sub(epoch))
				}
				p.begin(at.Add(c.late))
				p.end(at.Add(c.late+c.takes), false)
			}
			if want := uint64(1000 * (c.each/c.period - 1)); p.skipped != want {
				t.Errorf("%d skipped, want %d", p.skipped, want)
			}
		})
	}
}

// TestPlanHolds tries consumers and hints in any order: no two samples are
// planned within MinInterval, each hint is served, and no grid is left.
func TestPlanHolds(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var p plan
		now, last := epoch, time.Time{}
		ids := []string{"a", "b", "c"}
		for range 300 {
			now = now.Add(ms(r.Float64() * 20))
			switch r.IntN(5) {
			case 0:
				p.want(ids[r.IntN(3)], ms(r.Float64()*60), now)
			case 1:
				p.want(ids[r.IntN(3)], 0, now)
			case 2:
				p.ask(now)
			}
			asked := !p.asked.IsZero()
			at, ok := p.due()
			if want := asked || len(p.wants) > 0; ok != want {
				t.Fatalf("seed %d: due %v with %d consumers, asked %v", seed, ok, len(p.wants), asked)
			}
			if !ok || at.After(now) {
				continue
			}
			if gap := at.Sub(last); gap < MinInterval {
				t.Fatalf("seed %d: %s between two samples", seed, gap)
			}
			last = at
			p.begin(now)
			now = now.Add(ms(r.Float64() * 30))
			p.end(now, false)
			if p.period > 0 && (!p.next.After(now) || p.next.Sub(now) > p.period) {
				t.Fatalf("seed %d: the next is due in %s at a period of %s", seed, p.next.Sub(now), p.period)
			}
			if !p.asked.IsZero() {
				t.Fatalf("seed %d: a hint before a sample outlives it", seed)
			}
		}
	}
}

// TestPlanRests doubles the back-off up to a bound; a new consumer ends it.
func TestPlanRests(t *testing.T) {
	var p plan
	p.want("a", ms(10), epoch)
	var gaps []time.Duration
	for range 8 {
		at, _ := p.due()
		p.begin(at)
		p.end(at, true)
		next, _ := p.due()
		gaps = append(gaps, next.Sub(at))
	}
	for i, want := range []float64{200, 400, 800, 1600, 3200, 5000, 5000, 5000} {
		if gaps[i] != ms(want) {
			t.Errorf("gap %d is %s", i, gaps[i])
		}
	}
	now := p.last.Add(MinInterval)
	p.want("b", time.Second, now)
	if at, _ := p.due(); !at.Equal(now) {
		t.Errorf("a new consumer waits %s", at.Sub(now))
	}
	p.begin(now)
	p.end(now, false)
	if at, _ := p.due(); at.Sub(now) > ms(10) {
		t.Errorf("a good sample is followed after %s", at.Sub(now))
	}
}

// TestPlanTakesUpIntervals changes what a consumer wants.
func TestPlanTakesUpIntervals(t *testing.T) {
	var p plan
	p.want("a", time.Second, epoch)
	p.begin(epoch)
	p.end(epoch, false)
	for _, c := range []struct {
		name     string
		id       string
		interval time.Duration
		now, due time.Duration
	}{
		{"shorter", "a", ms(500), ms(100), ms(500)},
		{"longer", "a", time.Second, ms(200), time.Second},
		{"shorter than what passed", "a", ms(100), ms(350), ms(450)},
		{"below the least", "a", ms(1), ms(351), ms(361)},
		{"a new consumer at once", "b", time.Hour, ms(352), ms(352)},
	} {
		p.want(c.id, c.interval, epoch.Add(c.now))
		if at, _ := p.due(); at.Sub(epoch) != c.due {
			t.Errorf("%s: due at %s, want %s", c.name, at.Sub(epoch), c.due)
		}
	}
}

// TestPlanLeadsReports has samples of different length end just before the
// reports that are to have them, whenever the consumer came, at the same rate.
func TestPlanLeadsReports(t *testing.T) {
	for name, c := range map[string]struct{ period, takes, jitter time.Duration }{
		"10 ms":           {ms(10), ms(2), ms(0.5)},
		"100 ms":          {ms(100), ms(5), ms(2)},
		"slow page":       {ms(100), ms(70), ms(10)},
		"1 s":             {time.Second, ms(40), ms(20)},
		"next to no time": {ms(50), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for range 50 {
				var p plan
				phase := time.Duration(r.Int64N(int64(c.period)))
				p.want("a", c.period, epoch)
				p.align("a", epoch.Add(phase), epoch)
				samples, missed, oldest := 0, 0, time.Duration(0)
				var taken, ended time.Time
				for report := epoch.Add(phase); report.Before(epoch.Add(200 * c.period)); report = report.Add(c.period) {
					for {
						at, _ := p.due()
						if at.After(report) {
							break
						}
						p.begin(at)
						taken, ended = at, at.Add(c.takes+time.Duration(r.Float64()*float64(c.jitter)))
						p.took(ended)
						p.end(ended, false)
						samples++
					}
					if report.Before(epoch.Add(100 * c.period)) {
						continue // it is still learned how long samples take
					}
					if ended.After(report) {
						missed++
						continue
					}
					oldest = max(oldest, report.Sub(taken))
				}
				if missed > 10 {
					t.Errorf("%d of 100 reports are of the sample before", missed)
				}
				if most := c.takes + 3*c.jitter + 2*leastLead; oldest > most {
					t.Errorf("a report has a sample of %s, want %s at most", oldest, most)
				}
				if samples < 199 || samples > 202 {
					t.Errorf("%d samples for 200 reports", samples)
				}
			}
		})
	}
}

// TestPlanLeadsMost has consumers of several phases: the grid is that of the
// consumer for which the samples of all are youngest, and follows when it goes.
func TestPlanLeadsMost(t *testing.T) {
	var p plan
	for id, due := range map[string]float64{"a": 40, "b": 43, "c": 45, "d": 240} {
		p.want(id, ms(100), epoch)
		p.align(id, epoch.Add(ms(due)), epoch)
	}
	p.want("slow", ms(300), epoch)
	p.align("slow", epoch.Add(ms(841)), epoch)
	p.want("odd", ms(170), epoch)
	p.align("odd", epoch.Add(ms(90)), epoch)
	p.align("nobody", epoch.Add(ms(10)), epoch)
	phase := func() time.Duration { return p.next.Sub(epoch) % ms(100) }
	if phase() != ms(40) {
		t.Errorf("the grid is at %s", phase())
	}
	p.want("a", 0, epoch)
	p.want("d", ms(500), epoch)
	p.align("b", epoch.Add(ms(43)), epoch)
	if phase() != ms(41) {
		t.Errorf("the grid is at %s once others went", phase())
	}
}
