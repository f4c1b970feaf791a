package service

import (
	"strings"
	"testing"
)

// Series of workers are there where they are asked for, and the build always.
func TestSeriesOfWorkersAreAskedFor(t *testing.T) {
	for _, c := range []struct {
		name string
		most int
		has  bool
	}{{"by default", 0, false}, {"with --metrics-workers", 5, true}} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.MetricsWorkers = c.most
			cfg.Worker = []string{"http://127.0.0.1:9"}
			s, err := New(cfg, Options{Logger: testLogger(&logBuffer{}), Version: "1.2.3"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			families, err := s.gatherer.Gather()
			if err != nil {
				t.Fatal(err)
			}
			has, version := false, ""
			for _, f := range families {
				has = has || strings.HasPrefix(f.GetName(), "loadplane_worker_")
				if f.GetName() == "loadplane_build_info" {
					for _, l := range f.GetMetric()[0].GetLabel() {
						version += l.GetName() + "=" + l.GetValue() + " "
					}
				}
			}
			if has != c.has || !strings.Contains(version, "version=1.2.3 ") || !strings.Contains(version, "goversion=go1.") || !strings.Contains(version, "revision=") {
				t.Errorf("series of workers: %t, want %t; build %s", has, c.has, version)
			}
		})
	}
}
