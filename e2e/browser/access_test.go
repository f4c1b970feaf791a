package browser

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTokenIsAskedFor opens the page of a plane that demands a bearer token.
func TestTokenIsAskedFor(t *testing.T) {
	need(t, chromium.start())
	const token = "correct-horse-battery-staple-0123456789"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, urls := fleet(t, "--engines=1", "--ranks=2")
	_, api := serve(t, "serve", "--api-token-file="+file, "--worker="+urls[0])
	p := open(t, api, desk)
	p.eval(inspector, nil)
	p.untilState("denied")
	p.until(`inspector.dialog() !== ""`)
	var first string
	p.eval(`inspector.dialog()`, &first)
	p.shot(artefacts(t) + "/token-asked.png")

	p.answerToken("wrong-" + token)
	p.until(`inspector.dialog() !== "" && inspector.dialog() !== ` + quote(first))
	p.untilState("denied")
	p.shot(artefacts(t) + "/token-wrong.png")

	p.answerToken(token)
	p.untilState("live")
	p.until(`inspector.count("fresh") === 1`)
	p.until(`inspector.dialog() === ""`)
	var kept bool
	p.eval(`JSON.stringify(localStorage).includes(`+quote(token)+`) || document.cookie.includes(`+quote(token)+`) || location.href.includes(`+quote(token)+`)`, &kept)
	if kept {
		t.Error("the token is kept beyond the session, or shown in the address")
	}
	p.requireQuiet("401")
}

// answerToken types a token into the dialog, which has the focus.
func (p *page) answerToken(token string) {
	p.t.Helper()
	p.until(`document.activeElement.matches("dialog input")`)
	p.press("Control+A")
	p.do(step{Do: "type", Text: token}, nil)
	p.press("Enter")
}
