//go:build !race

package soak

import "time"

const usual = time.Hour
