package inspect

import (
	"encoding/json"
	"io"

	"github.com/loadplane/loadplane/cmd/loadplane/document"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/store"
)

// reportDoc is a report in JSON. What is unknown is left out.
type reportDoc struct {
	URL      string           `json:"url"`
	Dialect  string           `json:"dialect,omitempty"`
	Why      string           `json:"why"`
	Engine   engineDoc        `json:"engine"`
	Complete bool             `json:"complete"`
	Offers   []offerDoc       `json:"offers"`
	Pages    []pageDoc        `json:"pages"`
	Endpoint string           `json:"endpoint,omitempty"`
	Fields   []fieldDoc       `json:"fields,omitempty"`
	Unknown  []string         `json:"unknown,omitempty"`
	Ranks    []map[string]any `json:"ranks,omitempty"`
	Notes    []string         `json:"notes,omitempty"`
	Process  float64          `json:"process_start_seconds,omitempty"`
}

type engineDoc struct {
	Family         string   `json:"family,omitempty"`
	Version        string   `json:"version,omitempty"`
	Models         []string `json:"models,omitempty"`
	Role           string   `json:"role,omitempty"`
	DPSize         int      `json:"dp_size,omitempty"`
	CapacityTokens int64    `json:"capacity_tokens,omitempty"`
	MaxRunning     int64    `json:"max_running,omitempty"`

	ReporterPort int         `json:"reporter_port,omitempty"`
	LoadStat     *socketsDoc `json:"loadstat,omitempty"`
}

// socketsDoc is where an engine publishes its load.
type socketsDoc struct {
	Host  string `json:"host,omitempty"`
	Port  int    `json:"port"`
	Topic string `json:"topic,omitempty"`
	Ranks int    `json:"ranks"`
}

type offerDoc struct {
	Dialect string `json:"dialect"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

type pageDoc struct {
	Path     string `json:"path"`
	Status   int    `json:"status,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
	TookMs   int64  `json:"took_ms"`
	Endpoint string `json:"endpoint,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

type fieldDoc struct {
	Field string `json:"field"`
	Name  string `json:"name"`
}

// JSON writes a report as one indented JSON object. Unknown values are left
// out. Characters that a terminal may take for something else are escaped.
func JSON(w io.Writer, r *probe.Report) error {
	d := reportDoc{
		URL: r.URL, Why: r.Why, Complete: r.Complete, Unknown: names(r.Unknown),
		Engine: engineDoc{
			Family: r.Facts.Family, Version: r.Facts.Version, Models: r.Facts.Models,
			DPSize: r.Facts.DPSize, CapacityTokens: r.Facts.CapacityTokens, MaxRunning: r.Facts.MaxRunning,
			ReporterPort: r.ReporterPort,
		},
		Offers: []offerDoc{}, Pages: []pageDoc{},
	}
	if l := r.Facts.LoadStat; l.Port != 0 {
		d.Engine.LoadStat = &socketsDoc{l.Host, l.Port, l.Topic, l.Ranks}
	}
	if r.Facts.Role != store.RoleUnspecified {
		d.Engine.Role = r.Facts.Role.String()
	}
	if r.Dialect != store.DialectUnspecified {
		d.Dialect = r.Dialect.String()
	}
	for _, o := range r.Offers {
		d.Offers = append(d.Offers, offerDoc{o.Dialect.String(), o.Verdict.String(), string(o.Reason), o.Detail})
	}
	for _, a := range r.Asked {
		d.Pages = append(d.Pages, pageDoc{
			a.Path, a.Status, a.Bytes, a.Took.Milliseconds(), a.Endpoint, string(a.Reason), a.Detail,
		})
	}
	d.read(r)
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, document.EscapeJSON(string(b))+"\n")
	return err
}

// read adds what the load page says.
func (d *reportDoc) read(r *probe.Report) {
	if r.Reading == nil {
		return
	}
	d.Endpoint, d.Process = r.Endpoint.Name, r.Reading.Process
	d.Notes = notes(r)
	for _, m := range r.Reading.Matches {
		d.Fields = append(d.Fields, fieldDoc{store.Fields[m.Field].Name, m.Name})
	}
	for i := range r.Reading.Ranks {
		d.Ranks = append(d.Ranks, values(&r.Reading.Ranks[i].Rank))
	}
}

// values returns the known values of a rank by their names.
func values(r *store.Rank) map[string]any {
	m := map[string]any{"dp_rank": r.DPRank}
	for f := range store.NumFields {
		name := store.Fields[f].Name
		if v, ok := r.Float(f); ok && store.Fields[f].Float {
			m[name] = v
		} else if v, ok := r.Count(f); ok {
			m[name] = v
		}
	}
	return m
}
