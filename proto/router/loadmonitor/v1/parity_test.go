package loadmonitorv1_test

import (
	"fmt"
	"slices"
	"testing"

	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// dialect is the push dialect as engines speak it, one line a declaration.
// It is not derived from the definitions, so that neither can change alone.
var dialect = []string{
	"package router.loadmonitor.v1",
	"service LoadMonitorService",
	"rpc LoadMonitorService.Report(stream LoadReport) returns google.protobuf.Empty",
	"message Worker",
	"Worker.worker_addr = 1: string",
	"Worker.worker_type = 2: WorkerType",
	"Worker.model = 3: optional string",
	"Worker.zone = 4: optional string",
	"message RankLoad",
	"RankLoad.dp_rank = 1: int32",
	"RankLoad.snapshot_time_unix_ms = 2: int64",
	"RankLoad.num_running_reqs = 3: int64",
	"RankLoad.num_waiting_reqs = 4: int64",
	"RankLoad.num_waiting_uncached_tokens = 5: int64",
	"RankLoad.num_used_tokens = 6: int64",
	"RankLoad.num_total_tokens = 7: int64",
	"RankLoad.max_total_num_tokens = 8: int64",
	"RankLoad.max_running_requests = 9: int64",
	"RankLoad.token_usage = 10: double",
	"RankLoad.gen_throughput = 11: double",
	"RankLoad.cache_hit_rate = 12: double",
	"RankLoad.utilization = 13: double",
	"RankLoad.prefill_throughput = 14: double",
	"message LoadReport",
	"LoadReport.source_instance_id = 1: string",
	"LoadReport.sequence_id = 2: uint64",
	"LoadReport.report_time_unix_ms = 3: int64",
	"LoadReport.worker = 4: Worker",
	"LoadReport.status = 5: ReportStatus",
	"LoadReport.last_error = 6: optional string",
	"LoadReport.ranks = 7: repeated RankLoad",
	"enum WorkerType",
	"WorkerType.WORKER_TYPE_UNSPECIFIED = 0",
	"WorkerType.WORKER_TYPE_REGULAR = 1",
	"WorkerType.WORKER_TYPE_PREFILL = 2",
	"WorkerType.WORKER_TYPE_DECODE = 3",
	"enum ReportStatus",
	"ReportStatus.REPORT_STATUS_UNSPECIFIED = 0",
	"ReportStatus.REPORT_STATUS_HEALTHY = 1",
	"ReportStatus.REPORT_STATUS_STALE = 2",
	"ReportStatus.REPORT_STATUS_UNREACHABLE = 3",
}

func TestDefinitionsMatchTheDialect(t *testing.T) {
	declared := declarations(loadmonitorv1.File_router_loadmonitor_v1_load_monitor_proto)
	for _, want := range dialect {
		if !slices.Contains(declared, want) {
			t.Errorf("not declared: %s", want)
		}
	}
	for _, have := range declared {
		if !slices.Contains(dialect, have) {
			t.Errorf("declared, and not of the dialect: %s", have)
		}
	}
}

func TestReportPath(t *testing.T) {
	const want = "/router.loadmonitor.v1.LoadMonitorService/Report"
	if got := loadmonitorv1.LoadMonitorService_Report_FullMethodName; got != want {
		t.Errorf("path %s, want %s", got, want)
	}
}

// declarations writes a file in the form of the table.
func declarations(file protoreflect.FileDescriptor) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("package %s", file.Package())
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		add("service %s", s.Name())
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			add("rpc %s.%s(%s%s) returns %s%s", s.Name(), m.Name(), word("stream ", m.IsStreamingClient()),
				local(m.Input()), word("stream ", m.IsStreamingServer()), local(m.Output()))
		}
	}
	lines = append(lines, messages(file.Messages())...)
	lines = append(lines, enums(file.Enums())...)
	for i := range file.Extensions().Len() {
		add("extension %s", file.Extensions().Get(i).Name())
	}
	return lines
}

func messages(ms protoreflect.MessageDescriptors) (lines []string) {
	for i := range ms.Len() {
		m := ms.Get(i)
		lines = append(lines, fmt.Sprintf("message %s", m.Name()))
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			lines = append(lines, fmt.Sprintf("%s.%s = %d: %s%s", m.Name(), f.Name(), f.Number(), label(f), kind(f)))
		}
		lines = append(lines, messages(m.Messages())...)
		lines = append(lines, enums(m.Enums())...)
	}
	return lines
}

func enums(es protoreflect.EnumDescriptors) (lines []string) {
	for i := range es.Len() {
		e := es.Get(i)
		lines = append(lines, fmt.Sprintf("enum %s", e.Name()))
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			lines = append(lines, fmt.Sprintf("%s.%s = %d", e.Name(), v.Name(), v.Number()))
		}
	}
	return lines
}

func label(f protoreflect.FieldDescriptor) string {
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return "oneof "
	}
	return word("map ", f.IsMap()) + word("repeated ", f.IsList()) + word("optional ", f.HasOptionalKeyword())
}

func kind(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return local(f.Message())
	case protoreflect.EnumKind:
		return local(f.Enum())
	default:
		return f.Kind().String()
	}
}

// local returns the short name of a declaration of this file, the full name of
// any other.
func local(d protoreflect.Descriptor) string {
	if d.ParentFile().Package() == loadmonitorv1.File_router_loadmonitor_v1_load_monitor_proto.Package() {
		return string(d.Name())
	}
	return string(d.FullName())
}

func word(w string, is bool) string {
	if is {
		return w
	}
	return ""
}

func TestVarintUnderField14IsNoError(t *testing.T) {
	const num = 14
	frame := protowire.AppendTag(nil, 3, protowire.VarintType)
	frame = protowire.AppendVarint(frame, 7)
	cases := []struct {
		name  string
		frame []byte
		want  float64
	}{
		{"varint", protowire.AppendVarint(protowire.AppendTag(slices.Clone(frame), num, protowire.VarintType), 4096), 0},
		{"double", protowire.AppendFixed64(protowire.AppendTag(slices.Clone(frame), num, protowire.Fixed64Type), 0x40b0000000000000), 4096},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var rank loadmonitorv1.RankLoad
			if err := proto.Unmarshal(c.frame, &rank); err != nil {
				t.Fatal(err)
			}
			if got := rank.GetPrefillThroughput(); got != c.want {
				t.Errorf("prefill_throughput %v, want %v", got, c.want)
			}
			if got := rank.GetNumRunningReqs(); got != 7 {
				t.Errorf("num_running_reqs %d, want 7", got)
			}
			if unknown := len(rank.ProtoReflect().GetUnknown()) > 0; unknown != (c.want == 0) {
				t.Errorf("unknown fields %t, want %t", unknown, c.want == 0)
			}
		})
	}
}
