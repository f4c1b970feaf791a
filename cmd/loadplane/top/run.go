package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/cmd/loadplane/top/board"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

const (
	// pause is the shortest time between two views that are shown.
	pause = 200 * time.Millisecond
	// tick is the time after which ages are shown anew without a view.
	tick = time.Second
)

// Flags say what is shown. Register fills them; they are a plain value.
type Flags struct {
	once, reverse        bool
	sort, filter         string
	models, roles, zones []string
}

// Register adds the flags to fs.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.BoolVar(&f.once, "once", false, "print the view once as plain text within 80 columns, and exit")
	fs.StringVar(&f.sort, "sort", "usage", "column to sort by: "+strings.Join(Columns(), ", "))
	fs.BoolVar(&f.reverse, "reverse", false, "sort the other way round")
	fs.StringVar(&f.filter, "filter", "", "words that must all stand in what is known of a worker")
	fs.StringSliceVar(&f.models, "model", nil, "only workers that serve one of these models")
	fs.StringSliceVar(&f.roles, "role", nil, "only workers of one of these roles: plain, prefill, decode")
	fs.StringSliceVar(&f.zones, "zone", nil, "only workers of one of these zones")
}

// Columns returns the words that --sort takes.
func Columns() []string {
	var names []string
	for _, s := range board.Sortable() {
		names = append(names, s.Name)
	}
	return names
}

// choice returns what the flags say of order and filter.
func (f Flags) choice() (board.Choice, error) {
	all := board.Sortable()
	i := slices.IndexFunc(all, func(s board.Field) bool { return s.Name == f.sort })
	if i < 0 {
		return board.Choice{}, remote.Usagef("--sort: %q is not one of %s", f.sort, strings.Join(Columns(), ", "))
	}
	return board.Choice{By: all[i], Reverse: f.reverse, Filter: board.FilterWords(f.filter)}, nil
}

// selection returns what the plane is asked for; nil for all.
func (f Flags) selection() (*pb.Filter, error) {
	out := &pb.Filter{Models: f.models, Zones: f.zones}
	for _, r := range f.roles {
		role, ok := map[string]pb.Role{"plain": pb.Role_ROLE_REGULAR, "prefill": pb.Role_ROLE_PREFILL, "decode": pb.Role_ROLE_DECODE}[r]
		if !ok {
			return nil, remote.Usagef("--role: %q is not one of plain, prefill, decode", r)
		}
		out.Roles = append(out.Roles, role)
	}
	if len(f.models)+len(f.roles)+len(f.zones) == 0 {
		return nil, nil //nolint:nilnil // No filter is one that selects all.
	}
	return out, nil
}

// Terminal is where the screen is. It is a plain value.
type Terminal struct {
	// Out is written to.
	Out io.Writer
	// Is says that Out is a terminal.
	Is bool
	// Environ has the form of os.Environ; it says which colours the terminal
	// has, and NO_COLOR that none are wanted.
	Environ []string
}

// Run shows a plane until the user quits or ctx ends, or once, and returns when
// all that it started has ended. An error is a *remote.UsageError, or says why
// the plane could not be asked.
func Run(ctx context.Context, plane *remote.Client, f Flags, t Terminal) error {
	c, err := f.choice()
	if err != nil {
		return err
	}
	selection, err := f.selection()
	if err != nil {
		return err
	}
	if f.once {
		return once(ctx, plane, selection, func(v *client.View) error {
			_, err := io.WriteString(t.Out, frame(plane.Server(), v, time.Now(), c))
			return err
		})
	}
	if !t.Is {
		return remote.Usagef("standard output is no terminal; --once prints the view once")
	}
	if slices.Contains(t.Environ, "TERM=dumb") {
		return remote.Usagef("the terminal is dumb (TERM=dumb) and cannot show a screen; --once prints the view once")
	}
	watcher, err := plane.Follow(selection, "loadplane top")
	if err != nil {
		return err
	}
	m := newModel(plane.Server(), c, f.filter)
	m.ask, m.advise = plane.Checks, plane.Advise
	return m.run(ctx, watcher, t)
}

// once gets the view once.
func once(ctx context.Context, plane *remote.Client, f *pb.Filter, show func(*client.View) error) error {
	message, err := plane.View(ctx, f)
	if err != nil {
		return err
	}
	v, err := new(client.Replica).Apply(message, time.Now())
	if err != nil {
		return fmt.Errorf("%s: %w", plane.Server(), err)
	}
	return show(v)
}

// frame is the view as plain text within the columns of a line of text.
func frame(server string, v *client.View, now time.Time, c board.Choice) string {
	b := board.New(v, now, c)
	warming := ""
	if v.Warming() {
		warming = "  WARMING"
	}
	lines := []paint.Line{paint.Say(paint.Plain, paint.Clean(fmt.Sprintf("%s%s  %s", version(v), warming, server))), b.Totals(), nil}
	if pools := b.PoolLines(table.Columns, len(b.Pools)+1); pools != nil {
		lines = append(append(lines, pools...), nil)
	}
	l := board.NewLayout(table.Columns, 0, b.Rows, b.Rows)
	lines = append(lines, l.Head(c))
	for _, r := range b.Rows {
		lines = append(lines, l.Row(r))
	}
	var out strings.Builder
	for _, l := range lines {
		out.WriteString(strings.TrimRight(paint.Cut(l.Text(), table.Columns, paint.Left), " ") + "\n")
	}
	return out.String()
}

// run follows the watcher and shows what it has.
func (m *model) run(ctx context.Context, watcher *client.Watcher, t Terminal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.ctx = ctx
	program := tea.NewProgram(m, tea.WithContext(ctx), tea.WithOutput(t.Out), tea.WithEnvironment(t.Environ), tea.WithoutSignalHandler())
	var group errgroup.Group
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { feed(ctx, watcher, program.Send); return nil })
	_, err := program.Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		err = nil
	}
	cancel()
	return errors.Join(err, group.Wait())
}

// feed sends what the watcher has whenever it has something else, and at least
// once a tick, but not more often than the pause allows, until ctx ends.
func feed(ctx context.Context, w *client.Watcher, send func(tea.Msg)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		v, changed := w.View()
		now := time.Now()
		send(news{view: v, status: w.Status(), now: now})
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-after(timer, tick):
		}
		select {
		case <-ctx.Done():
			return
		case <-after(timer, pause-time.Since(now)):
		}
	}
}

// after sets the timer anew.
func after(t *time.Timer, d time.Duration) <-chan time.Time {
	t.Reset(d)
	return t.C
}
