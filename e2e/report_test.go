package e2e

import (
	"testing"

	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// reportAs sends one report in the name of an origin and returns how the
// stream ended.
func reportAs(t *testing.T, ingest, origin string) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+ingest, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := loadmonitorv1.NewLoadMonitorServiceClient(conn).Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&loadmonitorv1.LoadReport{
		SourceInstanceId: "e2e", SequenceId: 1, Status: loadmonitorv1.ReportStatus_REPORT_STATUS_HEALTHY,
		Worker: &loadmonitorv1.Worker{WorkerAddr: origin, WorkerType: loadmonitorv1.WorkerType_WORKER_TYPE_REGULAR},
		Ranks:  []*loadmonitorv1.RankLoad{{MaxTotalNumTokens: 1, MaxRunningRequests: 1}},
	}); err != nil {
		t.Fatal(err)
	}
	return stream.RecvMsg(new(emptypb.Empty))
}
