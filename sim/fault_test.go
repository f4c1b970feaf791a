package sim

import (
	"strings"
	"testing"
	"time"
)

func TestParseFault(t *testing.T) {
	tests := map[string]Fault{
		"freeze":                               {Kind: FaultFreeze, Engine: AllEngines},
		"restart:engine=3,after=10s,every=30s": {Kind: FaultRestart, Engine: 3, After: 10 * time.Second, Every: 30 * time.Second},
		"silent:engine=0,for=5s,every=1m":      {Kind: FaultSilent, For: 5 * time.Second, Every: time.Minute},
		"fail:engine=all,after=1s":             {Kind: FaultFail, Engine: AllEngines, After: time.Second},
		"zero_capacity:for=1s":                 {Kind: FaultZeroCapacity, Engine: AllEngines, For: time.Second},
		"nan:engine=1":                         {Kind: FaultNaN, Engine: 1},
		"slow":                                 {Kind: FaultSlow, Engine: AllEngines, Delay: time.Second},
		"slow:delay=2500ms":                    {Kind: FaultSlow, Engine: AllEngines, Delay: 2500 * time.Millisecond},
		"down:for=3s":                          {Kind: FaultDown, Engine: AllEngines, For: 3 * time.Second},
		"idle:after=0s":                        {Kind: FaultIdle, Engine: AllEngines},
		"rerank:engine=2,after=9s,ranks=4":     {Kind: FaultRerank, Engine: 2, After: 9 * time.Second, Ranks: 4},
		"rerank:ranks=4096,every=1m":           {Kind: FaultRerank, Engine: AllEngines, Every: time.Minute, Ranks: 4096},
	}
	for text, want := range tests {
		if got, err := ParseFault(text); err != nil || got != want {
			t.Errorf("%q gives %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseFaultRefuses(t *testing.T) {
	tests := map[string]string{
		"":                         `unknown fault ""`,
		"explode":                  `unknown fault "explode"; known are restart, rerank, freeze,`,
		"Freeze":                   `unknown fault "Freeze"`,
		"freeze:":                  `unknown key ""`,
		"freeze:engin=1":           `unknown key "engin"`,
		"freeze:after=1s,after=2s": `"after" stands twice`,
		"freeze:engine=-1":         `engine "-1"`,
		"freeze:engine=x":          `engine "x"`,
		"freeze:after=5":           "missing unit",
		"freeze:after=-5s":         "a time is negative",
		"freeze:delay=1s":          "only slow takes a delay",
		"freeze:every=5s":          "every needs a for",
		"freeze:for=5s,every=5s":   "every must be longer",
		"restart:for=5s":           "restart takes no for",
		"rerank:for=5s,ranks=1":    "restart takes no for",
		"rerank":                   "ranks must be 1 to 4096",
		"rerank:ranks=4097":        "ranks must be 1 to 4096",
		"rerank:ranks=many":        `ranks "many"`,
		"restart:ranks=2":          "only rerank takes ranks",
		"slow:delay=0s":            "delay must be above 0",
	}
	for text, want := range tests {
		if _, err := ParseFault(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %s", text, err, want)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("restart:engine=3,after=10s,every=30s")
	f.Add("slow:delay=1.5s,for=2s")
	f.Add("freeze:,=")
	f.Add("rerank:ranks=4,every=3s")
	f.Fuzz(func(t *testing.T, text string) {
		fault, err := ParseFault(text)
		if err != nil {
			return
		}
		again, err := ParseFault(fault.String())
		if err != nil || again != fault {
			t.Errorf("%q is %+v, written %q and read back %+v, %v", text, fault, fault, again, err)
		}
	})
}
