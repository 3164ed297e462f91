"""Muon for the matrices between the layers, AdamW for all else, as one optimizer.

    >>> optimizer = muon_with_adamw(t5, learning_rate=1e-3, weight_decay=0.1)
    >>> [group["algorithm"] for group in optimizer.param_groups]
    ['muon', 'adamw', 'adamw']

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) replaces a matrix's momentum by the nearest
semi-orthogonal matrix. Its updates are scaled by 0.2 sqrt(max(rows, columns)) (`match_rms_adamw`, arXiv:2502.16982
section 2.2), which gives them the RMS of AdamW's, so that learning rate and weight decay of AdamW carry over to both
parts. Embeddings, head, norms and relative-bias tables are AdamW's.
"""

import torch

from t5suite.base.errors import ConfigError


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers behind one set of groups and one state.

    The groups' dictionaries and the state are shared with `torch.optim.Muon` and `torch.optim.AdamW`, so a learning
    rate schedule, `state_dict` and `load_state_dict` see one optimizer.

    Args:
      muon_groups: groups of 2-D parameters. adamw_groups: the others. Either may be empty.
      muon_settings, adamw_settings: keyword arguments of the two classes.
    """

    def __init__(self, muon_groups: list[dict], adamw_groups: list[dict], muon_settings: dict, adamw_settings: dict):
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError(f"--optimizer muon needs torch 2.9 or newer; this is {torch.__version__}")
        self.parts: dict[str, torch.optim.Optimizer] = {}
        if muon_groups:
            self.parts["muon"] = torch.optim.Muon(muon_groups, **muon_settings)
        if adamw_groups:
            self.parts["adamw"] = torch.optim.AdamW(adamw_groups, **adamw_settings)
        groups = [{**group, "algorithm": name} for name, part in self.parts.items() for group in part.param_groups]
        super().__init__(groups, {"lr": adamw_settings["lr"]})
        self._share()

    def _share(self) -> None:
        for name, part in self.parts.items():
            part.param_groups = [group for group in self.param_groups if group["algorithm"] == name]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure=None):
        """One update of both parts."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts.values():
            part.step()
        return loss

    def __setstate__(self, state) -> None:
        """`load_state_dict` ends here: it makes new groups and a new state, which the parts must see."""
        super().__setstate__(state)
        self._share()
