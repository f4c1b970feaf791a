package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
)

const (
	// shortestNote and longestNote bound the time between two notes of the life
	// of the engine.
	shortestNote, longestNote = 100 * time.Millisecond, time.Second
	// maxLifeBytes bounds the name of a life.
	maxLifeBytes = 128
)

// life is the life of the engine as it stands in a file, for the process that
// samples the engine next.
type life struct {
	Source  string  `json:"source_instance_id"`
	Process float64 `json:"process_start_time_seconds"`
	TakenMs int64   `json:"taken_unix_ms"`
}

// parseLife reads a file. It refuses one that cannot be, or is of the future.
func parseLife(text []byte, now time.Time) (source.Life, error) {
	var l life
	if err := json.Unmarshal(text, &l); err != nil {
		return source.Life{}, err
	}
	ago := now.UnixMilli() - l.TakenMs
	switch {
	case l.Source == "" || len(l.Source) > maxLifeBytes:
		return source.Life{}, fmt.Errorf("the name has not 1 to %d bytes", maxLifeBytes)
	case l.Process < 0:
		return source.Life{}, errors.New("the start of the process is negative")
	case l.TakenMs <= 0 || ago < 0 || ago > math.MaxInt64/int64(time.Millisecond):
		return source.Life{}, errors.New("the time of the sample is not one of the past")
	}
	return source.Life{Source: l.Source, Process: l.Process, Taken: now.Add(-time.Duration(ago) * time.Millisecond)}, nil
}

// adopt goes on with the life that the owner before noted, if there is one.
func (n *Node) adopt(path string) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var l source.Life
	if err == nil {
		l, err = parseLife(text, time.Now())
	}
	if err != nil {
		n.opts.Logger.Warn("the life of the engine is not taken over", "file", path, "err", err)
		return
	}
	n.opts.Source.Adopt(l)
}

// remember notes the life of the engine in a file until ctx ends, so that its
// age is below that at which a sample stops being healthy.
func (n *Node) remember(ctx context.Context, path string) {
	tick := time.NewTicker(min(max(n.opts.StaleAfter/4, shortestNote), longestNote))
	defer tick.Stop()
	noted, failed := source.Life{Source: "unknown"}, false
	note := func() {
		l, _ := n.opts.Source.Life()
		if l == noted {
			return
		}
		err := write(path, l)
		if err != nil && !failed {
			n.opts.Logger.Warn("the life of the engine is not noted", "file", path, "err", err)
		}
		noted, failed = l, err != nil
	}
	for {
		select {
		case <-tick.C:
			note()
		case <-ctx.Done():
			note()
			return
		}
	}
}

// write replaces the file at once; no life removes it.
func write(path string, l source.Life) error {
	if l.Source == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(life{l.Source, l.Process, l.Taken.UnixMilli()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
