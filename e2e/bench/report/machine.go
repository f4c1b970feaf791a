package report

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where the measurements were made. It is a plain value.
type Machine struct {
	// CPU is the model's name, Kernel and Go are versions.
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Pinned says that the server and the load have a core each.
	Pinned bool `json:"pinned"`
}

// ReadMachine looks at this machine; what it cannot tell is "unknown".
func ReadMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version()}
	_, err := exec.LookPath("taskset")
	m.Pinned = err == nil && m.Cores >= 2
	if name := cpuName(); name != "" {
		m.CPU = name
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

func cpuName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
