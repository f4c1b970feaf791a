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
// samples the engine next. When the last good sample was asked for is the time
// of the file: it alone moves with each sample, and costs no write.
type life struct {
	Source  string  `json:"source_instance_id"`
	Process float64 `json:"process_start_time_seconds"`
}

// parseLife reads a file of a time. It refuses one that cannot be, or is of the
// future.
func parseLife(text []byte, taken, now time.Time) (source.Life, error) {
	var l life
	if err := json.Unmarshal(text, &l); err != nil {
		return source.Life{}, err
	}
	ago := now.UnixMilli() - taken.UnixMilli()
	switch {
	case l.Source == "" || len(l.Source) > maxLifeBytes:
		return source.Life{}, fmt.Errorf("the name has not 1 to %d bytes", maxLifeBytes)
	case l.Process < 0:
		return source.Life{}, errors.New("the start of the process is negative")
	case taken.UnixMilli() <= 0 || ago < 0 || ago > math.MaxInt64/int64(time.Millisecond):
		return source.Life{}, errors.New("the time of the sample is not one of the past")
	}
	return source.Life{Source: l.Source, Process: l.Process, Taken: now.Add(-time.Duration(ago) * time.Millisecond)}, nil
}

// adopt goes on with the life that the owner before noted, if there is one.
func (n *Node) adopt(path string) {
	l, err := readLife(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		n.opts.Logger.Warn("the life of the engine is not taken over", "file", path, "err", err)
		return
	}
	n.opts.Source.Adopt(l)
}

func readLife(path string) (source.Life, error) {
	at, err := os.Stat(path)
	if err != nil {
		return source.Life{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return source.Life{}, err
	}
	return parseLife(text, at.ModTime(), time.Now())
}

// remember notes the life of the engine in a file until ctx ends, so that its
// age is below that at which a sample stops being healthy.
func (n *Node) remember(ctx context.Context, path string) {
	tick := time.NewTicker(min(max(n.opts.StaleAfter/4, shortestNote), longestNote))
	defer tick.Stop()
	// What stands in the file at first, or after a write that failed, is not known.
	unknown := source.Life{Source: "unknown"}
	noted, failed := unknown, false
	note := func() {
		l, _ := n.opts.Source.Life()
		if l == noted {
			return
		}
		err := write(path, noted, l)
		if err != nil && !failed {
			n.opts.Logger.Warn("the life of the engine is not noted", "file", path, "err", err)
		}
		if noted, failed = l, err != nil; failed {
			noted = unknown
		}
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

// write brings the file from one life to the next; no life removes it. Another
// life replaces it at once.
func write(path string, before, l source.Life) error {
	if l.Source == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if before.Source == l.Source && before.Process == l.Process {
		return os.Chtimes(path, time.Time{}, l.Taken)
	}
	text, err := json.Marshal(life{l.Source, l.Process})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	if err := os.Chtimes(path+".new", time.Time{}, l.Taken); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
