package operate

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/service/admin"
	"github.com/loadplane/loadplane/service/config"
	"github.com/spf13/pflag"
)

// SocketFlags say how to reach a plane by its admin socket. Register fills them;
// they are a plain value.
type SocketFlags struct {
	path    string
	timeout time.Duration
}

// Register adds the flags to fs.
func (f *SocketFlags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.path, "socket", "", "path of the plane's admin socket; default: LOADPLANE_ADMIN_SOCKET, or admin_socket of LOADPLANE_CONFIG")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "bound of the request")
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "admin-socket" { // as serve calls it
			name = "socket"
		}
		return pflag.NormalizedName(name)
	})
}

// Operator changes the workers of a running plane. It is immutable and safe for
// concurrent use.
type Operator struct {
	client  *admin.Client
	timeout time.Duration
}

// Connect checks the flags and returns an operator. Where no socket is given,
// the setting of the plane says it, by environ in the form of os.Environ. It
// dials nothing.
func (f SocketFlags) Connect(environ []string) (*Operator, error) {
	if f.timeout <= 0 {
		return nil, remote.Usagef("--timeout: want more than 0")
	}
	path := f.path
	if path == "" {
		cfg, err := config.Load(nil, environ)
		if err != nil {
			return nil, err
		}
		path = cfg.AdminSocket
	}
	if path == "" {
		return nil, remote.Usagef("no admin socket is named; give --socket PATH or LOADPLANE_ADMIN_SOCKET=PATH, with the path of the plane: loadplane serve --admin-socket PATH")
	}
	return &Operator{admin.NewClient(path), f.timeout}, nil
}

// Add adds a worker and writes who lists it.
func (o *Operator) Add(ctx context.Context, w io.Writer, worker string) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	answer, err := o.client.Add(ctx, worker)
	if err != nil {
		return err
	}
	if answer.DiscoveredBy == "" {
		return say(w, answer.WorkerID, "added, not listed yet; see: loadplane workers list -o wide")
	}
	return say(w, answer.WorkerID, "added, listed by "+answer.DiscoveredBy)
}

// Remove removes a worker that was added, and writes that.
func (o *Operator) Remove(ctx context.Context, w io.Writer, id string) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	answer, err := o.client.Remove(ctx, id)
	if err != nil {
		return err
	}
	return say(w, answer.WorkerID, "removed")
}

// Drain keeps new work from a worker or undoes that, and writes it.
func (o *Operator) Drain(ctx context.Context, w io.Writer, id string, on bool) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	answer, err := o.client.Drain(ctx, id, on)
	switch {
	case err != nil:
		return err
	case on:
		return say(w, answer.WorkerID, "drains")
	}
	return say(w, answer.WorkerID, "takes new work again")
}

func say(w io.Writer, id, what string) error {
	_, err := fmt.Fprintln(w, table.Printable("worker "+id+" "+what, 1024))
	return err
}
