package findings

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Ask asks a plane about a worker. The error says what to do; that there is no
// such worker is not a fault of the way to the plane.
func Ask(ctx context.Context, c *remote.Client, worker string) (*pb.ExplainWorkerResponse, error) {
	res, err := c.Checks(ctx, worker)
	var answered *connect.Error
	switch {
	case err == nil:
		return res, nil
	case errors.As(err, &answered) && answered.Code() == connect.CodeNotFound:
		return nil, fmt.Errorf("%s; all: loadplane workers list", table.Printable(answered.Message(), 2048))
	}
	return nil, c.Advise(err)
}

// Names returns the ids of the workers of a plane that can be typed as they are
// shown.
func Names(ctx context.Context, c *remote.Client) ([]string, error) {
	answer, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, info := range answer.GetWorkers() {
		if id := info.GetWorker().GetWorkerId(); id == table.Printable(id, 1024) && !strings.ContainsAny(id, " \t") {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
