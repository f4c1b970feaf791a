package store

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleptFor returns how long the machine slept since boot: the boot clock runs
// on in a suspension, the monotonic clock does not.
func sleptFor() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}
