package journal

import (
	"errors"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/templates"
)

// mostLevels bounds the levels of pieces. Arguments have 30 at most.
const mostLevels = 100

var errLevels = errors.New("a template has too many levels")

// template codes what the definition of a template sets, but its hash.
func (c *codec) template(t *templates.Template) {
	list(c, &t.Ops, (*codec).op)
	list(c, &t.Used, (*codec).flag)
	list(c, &t.Options, (*codec).options)
	list(c, &t.Functions, (*codec).function)
	list(c, &t.Tasks, func(c *codec, task *templates.Task) {
		c.text(&task.Key)
		whole(c, &task.Op)
		whole(c, &task.Options)
		list(c, &task.Inputs, whole[templates.Input])
		list(c, &task.Items, func(c *codec, in *sched.ItemInput) {
			whole(c, &in.Input)
			whole(c, &in.Item)
			whole(c, &in.Count)
		})
		c.payload(&task.Arguments)
		c.pieces(&task.Pieces, mostLevels)
		c.flag(&task.Hold)
	})
	list(c, &t.Values, func(c *codec, v *templates.Value) {
		c.text(&v.Name)
		whole(c, &v.Type)
	})
	texts(c, &t.Inputs)
}

// pieces codes pieces of arguments, which have so many levels at most.
func (c *codec) pieces(p *[]templates.Piece, levels int) {
	if levels == 0 {
		c.fail(errLevels)
		return
	}
	list(c, p, func(c *codec, piece *templates.Piece) {
		c.payload(&piece.Literal)
		if len(piece.Literal) > 0 {
			return
		}
		inside := piece.Inside != nil
		c.flag(&inside)
		if inside {
			c.pieces(&piece.Inside, levels-1)
		} else {
			whole(c, &piece.Hole)
		}
	})
}
